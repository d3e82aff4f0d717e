//! Ports for servers that are stopped and come back at the same address.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Below the ports that Linux gives to connections (32768 on, unless `ip_local_port_range` says otherwise): none of these can take the
/// port while its server is stopped.
const FIRST: u32 = 10_240;
const COUNT: u32 = 22_000;

/// A port that nothing listens at, and that no test of this process gets twice. Tests of several processes begin apart.
pub(crate) fn lasting() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let apart = std::process::id().wrapping_mul(509);
    let next = || apart.wrapping_add(GIVEN.fetch_add(1, Relaxed)) % COUNT + FIRST;
    let ports = std::iter::repeat_with(next).take(COUNT as usize);
    let mut ports = ports.map(|port| u16::try_from(port).expect("below 32768"));
    ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok()).expect("a port is free")
}
