//! Asks a node over UDP which versions of QUIC it speaks (RFC 9000, 6.1): every server answers that, without any certificate,
//! and so shows that datagrams of a size get to it. Nothing is left of the question at the node.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

/// The largest datagram that nodes send, and the least that QUIC needs.
pub(super) const LARGEST: usize = 6500;
pub(super) const LEAST: usize = 1200;
/// How long an answer may take, and how often it is asked for.
const PATIENCE: Duration = Duration::from_millis(400);
const TIMES: usize = 3;

/// A version that no server has: those of this form are kept for that.
const NO_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
/// The name of our end, by which the answer is known.
const OWN: [u8; 8] = *b"shardctl";
const THEIRS: [u8; 8] = *b"a-doctor";

/// How datagrams fare on the way to an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Path {
    /// The address of this machine on it.
    pub(super) local: Option<IpAddr>,
    /// The largest packet, by the interface and by routers that complained.
    pub(super) mtu: Option<usize>,
    /// Whether small ones are answered.
    pub(super) is_answered: bool,
    /// Whether those of the largest size are.
    pub(super) is_large_answered: bool,
}

/// Sends questions of two sizes to an address.
pub(super) fn probe(address: SocketAddr) -> Path {
    let Ok(socket) = connect(address) else { return Path::default() };
    let is_answered = answers(&socket, LEAST);
    let is_large_answered = is_answered && answers(&socket, LARGEST);
    // As of now, when routers have had the time to complain.
    let mtu = match address {
        SocketAddr::V4(_) => sockopt::ip_mtu(&socket),
        SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket),
    };
    let local = socket.local_addr().ok().map(|local| local.ip());
    Path { local, mtu: mtu.ok().and_then(|mtu| usize::try_from(mtu).ok()), is_answered, is_large_answered }
}

fn connect(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // Never in fragments: nodes do not send such, either.
    match address {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?,
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    socket.connect(address)?;
    Ok(socket)
}

/// Whether a question of this number of bytes is answered.
fn answers(socket: &UdpSocket, bytes: usize) -> bool {
    let question = question(bytes);
    (0..TIMES).any(|_| {
        let until = Instant::now() + PATIENCE;
        // Larger than the interface takes, or refused by the other machine.
        if socket.send(&question).is_err() {
            return false;
        }
        let mut buffer = [0; 2048];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || socket.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            match socket.recv(&mut buffer) {
                Ok(length) if is_answer(&buffer[..length]) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    })
}

/// A long header of a version that no server has.
fn question(bytes: usize) -> Vec<u8> {
    let mut packet = vec![0xc0];
    packet.extend(NO_VERSION);
    for name in [THEIRS, OWN] {
        packet.push(name.len() as u8);
        packet.extend(name);
    }
    packet.resize(bytes, 0);
    packet
}

/// Whether it lists versions for our end: a long header of version 0 with the two names exchanged.
fn is_answer(packet: &[u8]) -> bool {
    let own = [&[OWN.len() as u8][..], &OWN].concat();
    packet.first().is_some_and(|first| first & 0x80 != 0)
        && packet.get(1..5) == Some(&[0; 4])
        && packet.get(5..14) == Some(&own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_asks_for_versions_and_knows_its_answer() {
        let packet = question(1200);
        assert_eq!(packet.len(), 1200);
        assert_eq!(packet[..6], [0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8]);
        let mut answer = vec![0xc5, 0, 0, 0, 0, 8];
        answer.extend(OWN);
        answer.push(8);
        answer.extend(THEIRS);
        answer.extend([0, 0, 0, 1]);
        assert!(is_answer(&answer));
        assert!(!is_answer(&packet) && !is_answer(&[]) && !is_answer(&answer[..10]));
    }

    #[test]
    fn a_server_on_loopback_answers_both_sizes() {
        let server = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = server.local_addr().expect("bound");
        std::thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Ok((length, from)) = server.recv_from(&mut buffer) {
                assert!([LEAST, LARGEST].contains(&length));
                let answer = [&[0x80, 0, 0, 0, 0, 8][..], &OWN, &[8], &THEIRS, &[0, 0, 0, 1]].concat();
                if server.send_to(&answer, from).is_err() {
                    break;
                }
            }
        });
        let path = probe(address);
        assert!(path.is_answered && path.is_large_answered, "{path:?}");
        assert!(path.mtu.is_some_and(|mtu| mtu > LARGEST), "{path:?}");
    }
}
