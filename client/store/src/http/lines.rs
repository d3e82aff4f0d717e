//! Answers that last, line by line: server-sent events.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use super::{HttpClient, HttpError};

/// The longest line, in bytes.
const LONGEST: u64 = 1 << 20;
/// How long a server may take to begin such an answer.
const BEGINS_WITHIN: Duration = Duration::from_secs(10);

/// The lines of an answer, without their ends, as they arrive.
pub struct Lines {
    url: String,
    reader: BufReader<ureq::BodyReader<'static>>,
}

impl HttpClient {
    /// GET of an answer that lasts. A server that sends nothing for longer than `silence` counts as gone.
    ///
    /// # Errors
    /// No answer, or a problem document.
    pub fn get_lines(
        &self,
        url: &str,
        headers: &[(&str, String)],
        silence: Duration,
    ) -> Result<Lines, HttpError> {
        let config = self.ask()?.get(url).config();
        let config =
            config.timeout_global(None).timeout_resolve(Some(BEGINS_WITHIN)).timeout_per_read(Some(silence));
        let request = config.timeout_recv_response(Some(BEGINS_WITHIN)).build();
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, value));
        match request.call() {
            Ok(answer) if answer.status().is_success() => Ok(Lines {
                url: url.to_owned(),
                reader: BufReader::new(answer.into_body().into_with_config().limit(u64::MAX).reader()),
            }),
            refused => self.read(url, refused).and_then(|_| Err(broken(url, "an answer without lines"))),
        }
    }

    /// Ends the requests under way, which fail, of this client and all its clones; later ones fail at once.
    pub fn shut_down(&self) {
        if let Ok(agent) = &self.agent {
            agent.clone().shutdown();
        }
    }
}

impl Iterator for Lines {
    type Item = Result<String, HttpError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        match (&mut self.reader).take(LONGEST).read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) if line.ends_with(b"\n") => {
                line.pop();
                let text = String::from_utf8(line);
                Some(text.map_err(|_| broken(&self.url, "a line that is no text")))
            }
            Ok(length) if length as u64 == LONGEST => Some(Err(broken(&self.url, "a line without end"))),
            // It broke off within a line.
            Ok(_) => None,
            Err(error) => {
                Some(Err(HttpError::Unreachable { url: self.url.clone(), reason: error.to_string() }))
            }
        }
    }
}

fn broken(url: &str, reason: &str) -> HttpError {
    HttpError::Protocol { url: url.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::sync_channel;

    use super::super::Credentials;
    use super::*;

    /// A server for one request, which `answer` answers; its address.
    fn server(answer: impl FnOnce(TcpStream) + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client comes");
            let mut reader = BufReader::new(stream.try_clone().expect("it can be cloned"));
            let mut line = String::new();
            while reader.read_line(&mut line).expect("it asks") > 2 {
                line.clear();
            }
            answer(stream);
        });
        format!("http://{address}/v1/events")
    }

    fn client() -> HttpClient {
        crate::tls::use_ring();
        HttpClient::with(Duration::from_secs(1), &Credentials::default())
    }

    const BEGIN: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

    fn chunk(text: &str) -> String {
        format!("{:x}\r\n{text}\r\n", text.len())
    }

    #[test]
    fn each_line_is_there_as_soon_as_it_is_sent_and_in_whatever_pieces() {
        let (tell, seen) = sync_channel(1);
        let url = server(move |mut stream| {
            let begin = format!("{BEGIN}{}{}", chunk("event: no"), chunk("de\ndata: 1\n"));
            stream.write_all(begin.as_bytes()).expect("sent");
            seen.recv().expect("the client has read both");
            let rest = format!("{}{}0\r\n\r\n", chunk("\n"), chunk("cut off"));
            stream.write_all(rest.as_bytes()).expect("sent");
        });
        let mut lines = client().get_lines(&url, &[], Duration::from_secs(30)).expect("it answers");
        let mut next = || lines.next().map(|line| line.expect("a line"));
        assert_eq!([next(), next()].map(Option::unwrap_or_default), ["event: node", "data: 1"]);
        tell.send(()).expect("the server waits");
        assert_eq!((next(), next()), (Some(String::new()), None));
    }

    #[test]
    fn silence_ends_it_and_so_does_the_client() {
        let (tell, done) = sync_channel::<()>(0);
        let url = server(move |mut stream| {
            stream.write_all(BEGIN.as_bytes()).expect("sent");
            let _ = done.recv();
        });
        let mut lines = client().get_lines(&url, &[], Duration::from_secs(1)).expect("it answers");
        assert!(matches!(lines.next(), Some(Err(HttpError::Unreachable { .. }))));
        drop(tell);

        let (tell, done) = sync_channel::<()>(0);
        let url = server(move |mut stream| {
            stream.write_all(BEGIN.as_bytes()).expect("sent");
            let _ = done.recv();
        });
        let client = client();
        let mut lines = client.get_lines(&url, &[], Duration::from_secs(600)).expect("it answers");
        let reads = std::thread::spawn(move || lines.next().is_none_or(|line| line.is_err()));
        client.shut_down();
        assert!(reads.join().expect("no panic"));
        drop(tell);
    }

    #[test]
    fn a_refusal_is_the_problem_that_it_is() {
        let url = server(|mut stream| {
            let body =
                r#"{"type":"urn:shardd:problem:too-many","title":"too many","status":429,"detail":"later"}"#;
            let answer =
                format!("HTTP/1.1 429 Too Many Requests\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).expect("sent");
        });
        let refused = client().get_lines(&url, &[], Duration::from_secs(30)).err();
        assert_eq!(refused.and_then(|error| error.status()), Some(429));
    }
}
