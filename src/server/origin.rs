//! Where a connection comes from, as far as limits tell clients apart. Pure.
//!
//! Owns the unit that is bounded: one user on a Unix socket (apart from that user's child processes of
//! the keeper, where `--grant-children` tells them apart), one IPv4 address, one IPv6 network of 64
//! bits (a single host usually has all of one). [`AgeQueue`] orders what origins, or callers, hold by age,
//! so that the oldest entry can be dropped for a newer one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::credentials::Peer;

/// Bits of an IPv6 address that name a host within its network.
const IPV6_HOST_BITS: u32 = 64;

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// A user on a Unix socket; `None` if the kernel does not report one.
    User(Option<u32>),
    /// A descendant of the keeper that runs as this user. It must not use up the share of its user.
    Child(Option<u32>),
    Ipv4(Ipv4Addr),
    /// An IPv6 network, by its first address.
    Ipv6Network(Ipv6Addr),
}

/// The client that a limit counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// A client without credentials.
    Origin(Origin),
    /// A caller, by its name.
    Caller(String),
}

impl Origin {
    pub(super) fn of(peer: &Peer) -> Origin {
        match peer {
            Peer::Unix { uid, child: false } => Origin::User(*uid),
            Peer::Unix { uid, child: true } => Origin::Child(*uid),
            Peer::Tcp { from, .. } => Origin::of_address(from.ip()),
        }
    }

    pub(super) fn of_address(address: IpAddr) -> Origin {
        match address.to_canonical() {
            IpAddr::V4(address) => Origin::Ipv4(address),
            IpAddr::V6(address) => {
                let network = address.to_bits() >> IPV6_HOST_BITS << IPV6_HOST_BITS;
                Origin::Ipv6Network(Ipv6Addr::from_bits(network))
            }
        }
    }

    /// Whether it is on this machine.
    pub(super) fn is_local(self) -> bool {
        match self {
            Origin::User(_) | Origin::Child(_) => true,
            Origin::Ipv4(address) => address.is_loopback(),
            // The network of ::1, which has no other address that can be used.
            Origin::Ipv6Network(network) => network.is_unspecified(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::User(Some(uid)) => write!(f, "uid {uid} on a Unix socket"),
            Origin::User(None) => f.write_str("a Unix socket"),
            Origin::Child(uid) => write!(f, "{}, a child process", Origin::User(*uid)),
            Origin::Ipv4(address) => write!(f, "{address}"),
            Origin::Ipv6Network(network) => write!(f, "{network}/{IPV6_HOST_BITS}"),
        }
    }
}

/// Entries in the order of their ids, which rise with time, each with the key that it counts for.
#[derive(Debug)]
pub(super) struct AgeQueue<K, T> {
    entries: BTreeMap<u64, (K, T)>,
    by_key: HashMap<K, BTreeSet<u64>>,
}

/// An [`AgeQueue`] of what origins hold.
pub(super) type OriginQueue<T> = AgeQueue<Origin, T>;

impl<K, T> Default for AgeQueue<K, T> {
    fn default() -> AgeQueue<K, T> {
        AgeQueue { entries: BTreeMap::new(), by_key: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash, T> AgeQueue<K, T> {
    pub(super) fn insert(&mut self, id: u64, key: K, value: T) {
        self.by_key.entry(key.clone()).or_default().insert(id);
        self.entries.insert(id, (key, value));
    }

    /// Removes an entry, which may be gone already.
    pub(super) fn remove(&mut self, id: u64) -> Option<T> {
        let (key, value) = self.entries.remove(&id)?;
        if let Some(ids) = self.by_key.get_mut(&key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_key.remove(&key);
            }
        }
        Some(value)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn count_of(&self, key: &K) -> usize {
        self.by_key.get(key).map_or(0, BTreeSet::len)
    }

    /// The key that has the most entries; of several the one with the oldest entry.
    pub(super) fn heaviest(&self) -> Option<&K> {
        let weight = |(_, ids): &(&K, &BTreeSet<u64>)| (ids.len(), Reverse(ids.first().copied()));
        self.by_key.iter().max_by_key(weight).map(|(key, _)| key)
    }

    /// The oldest entry of the key that has the most.
    pub(super) fn oldest_of_heaviest(&self) -> Option<(u64, &T)> {
        self.oldest_of(self.heaviest()?)
    }

    pub(super) fn oldest_of(&self, key: &K) -> Option<(u64, &T)> {
        let id = self.by_key.get(key)?.first()?;
        self.entries.get(id).map(|(_, value)| (*id, value))
    }

    /// The oldest entry of all.
    pub(super) fn oldest(&self) -> Option<(u64, &T)> {
        self.entries.first_key_value().map(|(id, (_, value))| (*id, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        Origin::of_address(address.parse().unwrap())
    }

    #[test]
    fn ipv6_hosts_share_the_origin_of_their_network() {
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:0:0:2"));
        assert_ne!(origin("2001:db8::1"), origin("2001:db8:0:1::1"));
        assert_eq!(origin("::ffff:192.0.2.1"), origin("192.0.2.1"));
        assert_ne!(origin("192.0.2.1"), origin("192.0.2.2"));
        assert_eq!(origin("2001:db8::1").to_string(), "2001:db8::/64");
    }

    #[test]
    fn child_process_does_not_share_the_origin_of_its_user() {
        let of = |child| Origin::of(&Peer::Unix { uid: Some(7), child });
        assert_ne!(of(true), of(false));
        assert!(of(true).is_local());
        assert_eq!(of(true).to_string(), "uid 7 on a Unix socket, a child process");
    }

    #[test]
    fn unix_sockets_and_loopback_are_local() {
        let local = [origin("127.0.0.9"), origin("::1"), origin("::ffff:127.0.0.1")];
        assert!(local.into_iter().chain([Origin::User(Some(7))]).all(Origin::is_local));
        assert!(!origin("192.0.2.1").is_local() && !origin("2001:db8::1").is_local());
    }

    #[test]
    fn queue_knows_the_oldest_entry_of_each_origin() {
        let (a, b) = (Origin::User(Some(1)), Origin::User(Some(2)));
        let mut queue = OriginQueue::default();
        for (id, origin) in [(1, a), (2, b), (3, a)] {
            queue.insert(id, origin, ());
        }
        assert_eq!(queue.oldest_of(&b), Some((2, &())));
        assert_eq!((queue.oldest(), queue.heaviest()), (Some((1, &())), Some(&a)));
        assert_eq!(queue.oldest_of_heaviest(), Some((1, &())));
        assert_eq!(queue.remove(1), Some(()));
        assert_eq!(queue.oldest_of_heaviest(), Some((2, &())), "of two alike the oldest");
        assert_eq!(queue.remove(1), None);
        assert_eq!((queue.oldest_of(&a), queue.count_of(&a)), (Some((3, &())), 1));
        queue.remove(3);
        assert_eq!((queue.oldest_of(&a), queue.count_of(&a), queue.len()), (None, 0, 1));
    }
}
