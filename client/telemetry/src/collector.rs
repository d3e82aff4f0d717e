//! The way to a collector: OTLP over HTTP.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tracing::{info, warn};

/// How long a collector may take. A span that it does not take is lost, and nothing else waits for it.
const WITHIN: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const LONGEST_ANSWER: u64 = 4 << 20;

/// Posts spans and log records. It logs when the collector begins to fail and when it is back, and not for each post.
#[derive(Debug)]
pub(crate) struct Collector {
    agent: ureq::Agent,
    signal: &'static str,
    is_failing: AtomicBool,
}

impl Collector {
    pub(crate) fn of(signal: &'static str) -> Collector {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(
                ureq::tls::TlsConfig::builder().root_certs(ureq::tls::RootCerts::PlatformVerifier).build(),
            )
            .timeout_connect(Some(Duration::from_secs(2)))
            .timeout_global(Some(WITHIN));
        Collector { agent: config.build().new_agent(), signal, is_failing: AtomicBool::new(false) }
    }

    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let mut answer = self.agent.run(Request::from_parts(parts, &body[..]))?;
        let body = answer.body_mut().with_config().limit(LONGEST_ANSWER).read_to_vec()?;
        let (parts, _) = answer.into_parts();
        Ok(Response::from_parts(parts, body.into()))
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The exporter calls this on a thread of its own.
        let url = request.uri().to_string();
        let answer = self.post(request);
        let reason = match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        match reason {
            Some(reason) if !self.is_failing.swap(true, Relaxed) => {
                warn!(
                    url,
                    reason, "the collector does not take {}; they are lost until it does", self.signal
                );
            }
            None if self.is_failing.swap(false, Relaxed) => {
                info!(url, "the collector takes {} again", self.signal);
            }
            _ => {}
        }
        Ok(answer?)
    }
}
