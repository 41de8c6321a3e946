//! Connections to a loopback address, and the user that has accepted one.
//!
//! Any local user can listen on a free port, so a port does not identify the server. This module
//! reads from the kernel's socket tables which user has accepted a connection and hands the
//! connection over only if the client trusts that user. Until then nothing is written to it.
//!
//! The uid of a listener would not do: a process can accept a connection and close its listener, and
//! a trusted server can listen on the port a moment later. A connection that no process has accepted
//! yet proves nothing either: before Linux 6.17 its row shows uid 0. Such rows have no inode.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use super::peer::check_uid;

/// How long a server may take to accept a connection: a server that is being replaced is back by
/// then. Shorter than the connect timeout, whose error would not name the cause.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(5);
/// The pauses between two looks at the socket tables.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// In how many looks the server's side may be absent: the kernel does not list all sockets at once,
/// so that it may skip one while others come and go.
const MAX_ABSENT: u32 = 8;

/// The socket tables of this network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// TCP states, as the tables have them.
const ESTABLISHED: u8 = 0x01;
const SYN_RECV: u8 = 0x03;

/// Connects to a server on loopback that root, this user or `server_uid` runs.
pub(super) async fn connect(address: &str, server_uid: Option<u32>) -> io::Result<TcpStream> {
    let deadline = Instant::now() + ACCEPT_TIMEOUT;
    let (mut pause, mut absent) = (FIRST_PAUSE, 0);
    let mut stream = TcpStream::connect(address).await?;
    loop {
        let failure = match server_side(&stream)? {
            ServerSide::Accepted(uids) => {
                uids.iter().try_for_each(|uid| check_uid(*uid, server_uid))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            ServerSide::Pending => {
                io::Error::new(io::ErrorKind::TimedOut, "the server accepts no connections")
            }
            ServerSide::Closed => {
                stream = TcpStream::connect(address).await?;
                io::Error::new(io::ErrorKind::ConnectionReset, "the server closes the connection")
            }
            ServerSide::Absent => {
                absent += 1;
                if absent >= MAX_ABSENT {
                    return Err(unidentified("it is not in this network namespace"));
                }
                unidentified("it is not in the socket tables")
            }
        };
        if Instant::now() + pause > deadline {
            return Err(failure);
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

/// The refusal to show a token to a server whose user is unknown.
fn unidentified(cause: impl std::fmt::Display) -> io::Error {
    let message = format!(
        "cannot identify the user that runs the server: {cause}; use a Unix socket, or TLS with --tls-ca"
    );
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

/// The server's side of a connection.
#[derive(Debug, PartialEq, Eq)]
enum ServerSide {
    /// Processes of these users have accepted it; more than one only if rows contradict each other.
    Accepted(Vec<u32>),
    /// It waits to be accepted.
    Pending,
    /// The server has closed it.
    Closed,
    /// The tables do not have it.
    Absent,
}

/// Looks the server's side of a connection up.
fn server_side(stream: &TcpStream) -> io::Result<ServerSide> {
    let (client, server) = (stream.local_addr()?, stream.peer_addr()?);
    // A name such as localhost may lead anywhere.
    if !server.ip().to_canonical().is_loopback() {
        return Err(unidentified(format_args!("{server} is not a loopback address")));
    }
    let mut tables = String::new();
    for path in TABLES {
        match std::fs::read_to_string(path) {
            Ok(table) => tables.push_str(&table),
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path == TABLES[1] => {}
            Err(error) => return Err(unidentified(format_args!("{path}: {error}"))),
        }
    }
    Ok(find(&tables, client, server))
}

/// Finds the server's side of a connection in the text of socket tables.
fn find(tables: &str, client: SocketAddr, server: SocketAddr) -> ServerSide {
    let (client, server) = (canonical(client), canonical(server));
    let rows = || tables.lines().filter_map(Row::parse);
    let is_open = rows().any(|row| {
        row.local == client && row.remote == server && row.state == ESTABLISHED && row.inode != 0
    });
    if !is_open {
        return ServerSide::Closed;
    }
    let mut side = ServerSide::Absent;
    for row in rows().filter(|row| row.local == server && row.remote == client) {
        side = match (side, row.inode) {
            (ServerSide::Accepted(uids), 0) => ServerSide::Accepted(uids),
            (ServerSide::Accepted(mut uids), _) => {
                uids.push(row.uid);
                ServerSide::Accepted(uids)
            }
            (_, 0) if matches!(row.state, ESTABLISHED | SYN_RECV) => ServerSide::Pending,
            (_, 0) => ServerSide::Closed,
            _ => ServerSide::Accepted(vec![row.uid]),
        };
    }
    side
}

/// One socket of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    uid: u32,
    /// 0: no process has a descriptor of it, and the uid means nothing.
    inode: u64,
}

impl Row {
    /// Parses a line; none: it is a heading.
    fn parse(line: &str) -> Option<Row> {
        let mut fields = line.split_ascii_whitespace();
        let (local, remote) = (parse_address(fields.nth(1)?)?, parse_address(fields.next()?)?);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        // Queues, timer and retransmissions come before the uid, a timeout after it.
        let (uid, inode) = (fields.nth(3)?.parse().ok()?, fields.nth(1)?.parse().ok()?);
        Some(Row { local, remote, state, uid, inode })
    }
}

/// Parses an address: words of 32 bits in network order, written as numbers of this machine.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for (at, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// The address without its scope, and as IPv4 where it is IPv4-mapped.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "127.0.0.1:46620";
    const SERVER: &str = "127.0.0.1:59553";
    const HEADING: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
    const LISTENER: &str = "   0: 0100007F:E8A1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14317 1 0000000000000000 100 0 0 10 0";

    /// A row in the format of little-endian machines.
    fn row(local: &str, remote: &str, state: u8, uid: u32, inode: u64) -> String {
        format!(
            "   1: {local} {remote} {state:02X} 00000000:00000000 02:000A0A0A 00000000 {uid:5}        0 {inode} 2 0000000000000000 20 0 0 10 -1"
        )
    }

    fn client_row(state: u8) -> String {
        row("0100007F:B61C", "0100007F:E8A1", state, 1000, 14318)
    }

    fn server_row(state: u8, uid: u32, inode: u64) -> String {
        row("0100007F:E8A1", "0100007F:B61C", state, uid, inode)
    }

    /// What the tables show of the connection from CLIENT to SERVER.
    fn found(rows: &[String]) -> ServerSide {
        let tables = format!("{HEADING}\n{LISTENER}\n{}\n{HEADING}\n", rows.join("\n"));
        find(&tables, CLIENT.parse().unwrap(), SERVER.parse().unwrap())
    }

    #[test]
    fn heading_and_truncated_lines_are_no_rows() {
        for line in ["", HEADING, "0: 0100007F:E8A1", "0: 0100007F 00000000:0000 0A 0 0 0 0 0 1"] {
            assert_eq!(Row::parse(line), None, "{line}");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_of_both_families_are_parsed() {
        for (text, address) in [
            ("0100007F:1D1A", "127.0.0.1:7450"),
            ("00000000000000000000000001000000:1D1A", "[::1]:7450"),
            ("0000000000000000FFFF00000100007F:1D1A", "127.0.0.1:7450"),
            ("B80D0120000000000000000001000000:0001", "[2001:db8::1]:1"),
        ] {
            assert_eq!(parse_address(text), Some(address.parse().unwrap()), "{text}");
        }
        for text in ["", "0100007F", "0100007F:", "0100007:1D1A", "é100007:1D1A", "x100007F:1"] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn accepted_connection_shows_its_uid() {
        let rows = [client_row(ESTABLISHED), server_row(ESTABLISHED, 65534, 15011)];
        assert_eq!(found(&rows), ServerSide::Accepted(vec![65534]));
        let mapped = row(
            "0000000000000000FFFF00000100007F:E8A1",
            "0000000000000000FFFF00000100007F:B61C",
            ESTABLISHED,
            7,
            15012,
        );
        assert_eq!(found(&[client_row(ESTABLISHED), mapped]), ServerSide::Accepted(vec![7]));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn connection_without_inode_has_no_owner() {
        // Linux before 6.17 shows uid 0 for a connection in the accept queue.
        for state in [ESTABLISHED, SYN_RECV] {
            let rows = [client_row(ESTABLISHED), server_row(state, 0, 0)];
            assert_eq!(found(&rows), ServerSide::Pending);
        }
        let rows = [client_row(ESTABLISHED), server_row(0x05, 0, 0)];
        assert_eq!(found(&rows), ServerSide::Closed);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn contradicting_rows_are_all_reported() {
        let rows = [
            client_row(ESTABLISHED),
            server_row(ESTABLISHED, 0, 0),
            server_row(ESTABLISHED, 0, 1),
            server_row(ESTABLISHED, 5, 2),
        ];
        assert_eq!(found(&rows), ServerSide::Accepted(vec![0, 5]));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listener_alone_does_not_identify_the_server() {
        assert_eq!(found(&[client_row(ESTABLISHED)]), ServerSide::Absent);
        let other = row("0100007F:E8A1", "0100007F:B61D", ESTABLISHED, 0, 15011);
        assert_eq!(found(&[client_row(ESTABLISHED), other]), ServerSide::Absent);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn connection_that_the_server_has_closed_is_recognised() {
        assert_eq!(found(&[]), ServerSide::Closed);
        assert_eq!(found(&[client_row(0x08)]), ServerSide::Closed);
    }

    #[tokio::test]
    async fn own_listener_is_trusted_once_it_accepts() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = tokio::net::TcpListener::bind(address).await else {
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let host = if address.starts_with("[::1]") { "[::1]" } else { "127.0.0.1" };
            let target = format!("{host}:{port}");
            let pending = TcpStream::connect(&target).await.unwrap();
            // The kernel may skip a row while others come and go.
            let side = (0..MAX_ABSENT).map(|_| server_side(&pending).unwrap());
            assert!(side.into_iter().any(|side| side == ServerSide::Pending), "{address}");
            let (connected, accepted) = tokio::join!(connect(&target, None), async {
                [listener.accept().await, listener.accept().await]
            });
            connected.unwrap();
            drop(accepted);
        }
    }
}
