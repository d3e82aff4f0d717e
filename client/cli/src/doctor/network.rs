//! The network between nodes: buffers of UDP, and datagrams to the nodes. Nodes talk QUIC, which is UDP.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::thread;

use rustix::net::sockopt;
use shardfmt::ByteSize;

use super::datagram::{LARGEST, LEAST, Path, probe};
use super::finding::{Check, Finding, Group, doc};
use super::shell;
use super::system::number;

/// The bytes that a node's socket asks for.
const BUFFER: u64 = 4 << 20;
/// The bytes of the headers of IP and UDP, of version 4 and 6.
const HEADERS: [usize; 2] = [28, 48];
/// Nodes that are asked at once.
const AT_ONCE: usize = 32;

const BUFFERS: Check = Check::new(Group::Machine, "udp_buffers", doc::EXCHANGE);
const DATAGRAMS: Check = Check::new(Group::Cluster, "datagrams", doc::EXCHANGE);

/// The buffers of UDP that this machine gives.
pub(crate) fn check() -> Vec<Finding> {
    let of = |name: &str| number(&format!("/proc/sys/net/core/{name}"));
    let limits = of("rmem_max").zip(of("wmem_max"));
    limits.map(|(receive, send)| buffers(receive, send, given())).into_iter().collect()
}

/// Limits of buffers, and the bytes that a socket got which asked for as many as a node.
fn buffers(receive: u64, send: u64, given: Option<(u64, u64)>) -> Finding {
    let [shown_receive, shown_send] = [receive, send].map(ByteSize);
    let evidence = format!(
        "UDP sockets may have {shown_receive} to receive (net.core.rmem_max) and {shown_send} to send (net.core.wmem_max); \
         nodes ask for {}",
        ByteSize(BUFFER)
    );
    // A user with rights over the network may get more than the limit.
    let has_all = given.is_some_and(|(receive, send)| receive >= BUFFER && send >= BUFFER);
    if receive >= BUFFER && send >= BUFFER || has_all {
        return BUFFERS.ok(evidence);
    }
    let lines = [("net.core.rmem_max", receive), ("net.core.wmem_max", send)];
    let lines = lines.iter().filter(|(_, limit)| *limit < BUFFER).map(|(name, _)| format!("{name}={BUFFER}"));
    BUFFERS
        .warning(format!(
            "{evidence}. With less, the kernel drops datagrams under load, and nodes send them again"
        ))
        .mend(
            "Raise the limits, on the host of a container; put the settings into /etc/sysctl.d to keep them.",
        )
        .run(format!("sysctl -w {}", lines.collect::<Vec<_>>().join(" ")))
}

/// What a socket gets. The kernel counts twice the bytes that were asked for.
fn given() -> Option<(u64, u64)> {
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    let bytes = usize::try_from(BUFFER).ok()?;
    sockopt::set_socket_recv_buffer_size(&socket, bytes).ok()?;
    sockopt::set_socket_send_buffer_size(&socket, bytes).ok()?;
    let (receive, send) =
        (sockopt::socket_recv_buffer_size(&socket), sockopt::socket_send_buffer_size(&socket));
    Some((receive.ok()? as u64 / 2, send.ok()? as u64 / 2))
}

/// Sends datagrams to nodes that this machine may reach: their names and addresses.
pub(crate) fn reach(nodes: &[(String, SocketAddr)]) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut interfaces = BTreeMap::new();
    for some in nodes.chunks(AT_ONCE) {
        let paths: Vec<Path> = thread::scope(|scope| {
            let probes: Vec<_> = some.iter().map(|(_, address)| scope.spawn(|| probe(*address))).collect();
            probes.into_iter().map(|probe| probe.join().unwrap_or_default()).collect()
        });
        for ((name, address), path) in some.iter().zip(paths) {
            let interface = path.local.and_then(|local| {
                interfaces.entry(local).or_insert_with(|| interface(local, address.ip())).clone()
            });
            found.push(datagrams(name, *address, &path, interface.as_deref()));
        }
    }
    found
}

/// How datagrams fare on the way to a node.
fn datagrams(node: &str, address: SocketAddr, path: &Path, interface: Option<&str>) -> Finding {
    let Path { mtu, is_answered, is_large_answered, .. } = *path;
    let headers = HEADERS[usize::from(address.is_ipv6())];
    let through = interface.map_or_else(String::new, |name| format!(" through {name}"));
    let way = format!("{node} at {address}{through}");
    let name = shell::word(interface.unwrap_or("INTERFACE"));
    if let Some(mtu) = mtu.filter(|mtu| *mtu < LEAST + headers) {
        return DATAGRAMS
            .error(format!("the MTU to {way} is {mtu}; QUIC needs {}", LEAST + headers))
            .mend("Raise the MTU of the interface, and of tunnels on the way.")
            .run(format!("ip link set dev {name} mtu 1500"));
    }
    if !is_answered {
        return DATAGRAMS
            .warning(format!("{way} does not answer datagrams of UDP from this machine"))
            .mend(format!(
                "Open UDP port {} in both directions between nodes, in firewalls and security groups; `ss -lun` on {node} lists \
                 its sockets. A machine that only runs loaders does not need it.",
                address.port()
            ));
    }
    let mtu_text = mtu.map_or_else(String::new, |mtu| format!(" (MTU {mtu})"));
    if is_large_answered {
        return DATAGRAMS.ok(format!("{way} answers datagrams of {LARGEST} bytes{mtu_text}"));
    }
    match mtu.is_some_and(|mtu| mtu >= LARGEST + headers) {
        true => DATAGRAMS
            .warning(format!("{way} answers datagrams of {LEAST} bytes and none of {LARGEST}, which the interface takes{mtu_text}"))
            .mend(format!(
                "Set the same MTU on all switches and interfaces on the way. `ping -M do -s {} {}` shows whether they let large \
                 packets through; until then nodes send smaller ones.",
                LARGEST + headers - 28,
                address.ip()
            )),
        false => DATAGRAMS.info(format!("{way} answers; datagrams of up to {LARGEST} bytes would take an MTU of {}{mtu_text}", LARGEST + headers))
            .mend("Jumbo frames (MTU 9000) on all interfaces and switches save time of the processors."),
    }
}

/// The name of the interface that has an address of this machine, by which another one is reached.
fn interface(local: IpAddr, peer: IpAddr) -> Option<String> {
    match local {
        local if local.is_loopback() || local == peer => Some("lo".to_owned()),
        IpAddr::V4(_) => {
            let IpAddr::V4(peer) = peer else { return None };
            route(&fs::read_to_string("/proc/net/route").ok()?, peer.to_bits())
        }
        IpAddr::V6(local) => owner(&fs::read_to_string("/proc/net/if_inet6").ok()?, local.to_bits()),
    }
}

/// The interface of the narrowest route to an address, by the text of /proc/net/route: numbers there are as they lie in memory.
fn route(table: &str, address: u32) -> Option<String> {
    let lines = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| Some(u32::from_be(u32::from_str_radix(fields.get(at)?, 16).ok()?));
        let (network, mask) = (number(1)?, number(7)?);
        (address & mask == network).then(|| (mask.count_ones(), fields[0].to_owned()))
    });
    lines.max_by_key(|(bits, _)| *bits).map(|(_, name)| name)
}

/// The interface that has an address, by the text of /proc/net/if_inet6.
fn owner(table: &str, address: u128) -> Option<String> {
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = u128::from_str_radix(fields.first()?, 16).ok()? == address;
        is_it.then(|| fields.last().map(|name| (*name).to_owned()))?
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Error, Info, Ok, Warning};
    use super::*;

    #[test]
    fn small_buffers_are_raised_to_what_nodes_ask_for() {
        for (receive, send, given, severity, command) in [
            (4 << 20, 4 << 20, None, Ok, None),
            (212_992, 212_992, Some((4 << 20, 4 << 20)), Ok, None),
            (
                212_992,
                212_992,
                Some((212_992, 212_992)),
                Warning,
                Some("sysctl -w net.core.rmem_max=4194304 net.core.wmem_max=4194304"),
            ),
            (8 << 20, 212_992, None, Warning, Some("sysctl -w net.core.wmem_max=4194304")),
        ] {
            let found = buffers(receive, send, given);
            assert_eq!((found.severity, found.command.as_deref()), (severity, command), "{found:?}");
        }
        assert!(given().is_some_and(|(receive, send)| receive > 0 && send > 0));
    }

    #[test]
    fn datagrams_are_judged_by_the_answers_and_the_mtu() {
        let path =
            |mtu, is_answered, is_large_answered| Path { local: None, mtu, is_answered, is_large_answered };
        for (path, severity, words) in [
            (path(Some(65_536), true, true), Ok, "6500 bytes"),
            (path(Some(9000), true, false), Warning, "none of 6500"),
            (path(Some(1500), true, false), Info, "MTU of 6528"),
            (path(Some(1500), false, false), Warning, "does not answer"),
            (path(Some(1200), false, false), Error, "needs 1228"),
            (path(None, true, false), Info, "answers"),
        ] {
            let address = "10.77.0.2:7701".parse().expect("an address");
            let found = datagrams("n2", address, &path, Some("eth0"));
            assert_eq!(found.severity, severity, "{found:?}");
            assert!(found.evidence.contains(words) && found.evidence.contains("eth0"), "{found:?}");
        }
        let small =
            datagrams("n2", "[fd00::1]:1".parse().expect("an address"), &path(Some(1240), true, true), None);
        assert_eq!(small.command.as_deref(), Some("ip link set dev INTERFACE mtu 1500"));
    }

    #[test]
    fn the_narrowest_route_names_the_interface() {
        let table = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                     eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth1\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let of = |text: &str| route(table, text.parse::<std::net::Ipv4Addr>().expect("an address").to_bits());
        assert_eq!(of("8.8.8.8").as_deref(), Some("eth0"));
        let wrong_order = "eth1\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert_eq!(route(wrong_order, 0), None, "the first line is a heading");
        assert_eq!(of("10.77.0.9").as_deref(), Some("eth1"));
        let table = "fd000000000000000000000000000002 04 40 00 82     eth0\n";
        let address = "fd00::2".parse::<std::net::Ipv6Addr>().expect("an address").to_bits();
        assert_eq!(owner(table, address).as_deref(), Some("eth0"));
        assert_eq!(owner(table, 1), None);
    }

    #[test]
    fn an_address_without_a_node_does_not_answer() {
        let silent = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = silent.local_addr().expect("bound");
        let found = reach(&[("n1".to_owned(), address)]);
        assert!(found[0].severity == Warning && found[0].evidence.contains("through lo"), "{found:?}");
    }
}
