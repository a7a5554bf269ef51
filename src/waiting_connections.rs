//! Connections that are waiting to be served, by source address.
//!
//! Owns which connection is evicted when there are too many, and which is next. Must never let a source with many
//! connections keep out one with few.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::Notify;

/// Source of a connection: an IPv4 address, an IPv6 network (one host owns all its addresses), or this machine over a
/// Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceAddress(Option<IpAddr>);

/// Length of an IPv6 network's prefix, in bits.
const NETWORK: u32 = 64;

impl SourceAddress {
    /// None: a Unix socket.
    pub fn new(address: Option<IpAddr>) -> Self {
        SourceAddress(address.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> NETWORK << NETWORK)),
            address => address,
        }))
    }

    /// False for a Unix socket.
    pub fn is_address(self) -> bool {
        self.0.is_some()
    }
}

impl fmt::Display for SourceAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(IpAddr::V4(address)) => write!(out, "{address}"),
            Some(IpAddr::V6(network)) => write!(out, "{network}/{NETWORK}"),
            None => out.write_str("Unix socket"),
        }
    }
}

/// Waiting connections, each with the signal that ends its wait.
#[derive(Debug, Default)]
pub struct WaitingConnections {
    /// Connections of each source by number, oldest first.
    of: HashMap<SourceAddress, BTreeMap<u64, Arc<Notify>>>,
    /// Number of connections and age of each source. The last entry has the most connections, and among equals has
    /// waited longest.
    order: BTreeSet<(usize, Reverse<u64>, SourceAddress)>,
    count: usize,
}

impl WaitingConnections {
    /// Number of waiting connections.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Adds a connection.
    pub fn insert(&mut self, source: SourceAddress, number: u64, notify: Arc<Notify>) {
        self.change(source, |of| {
            of.insert(number, notify);
        });
    }

    /// True if the connection is waiting.
    pub fn contains(&self, source: SourceAddress, number: u64) -> bool {
        self.of.get(&source).is_some_and(|of| of.contains_key(&number))
    }

    /// Removes a connection; None if it was not waiting.
    pub fn remove(&mut self, source: SourceAddress, number: u64) -> Option<Arc<Notify>> {
        self.change(source, |of| of.remove(&number))
    }

    /// Removes the connection to evict: the one that has waited longest, of the source with the most.
    pub fn pop_longest(&mut self) -> Option<Arc<Notify>> {
        let (.., source) = *self.order.last()?;
        self.change(source, |of| of.pop_first()).map(|(_, notify)| notify)
    }

    /// The sources of waiting connections.
    pub fn sources(&self) -> impl Iterator<Item = &SourceAddress> {
        self.of.keys()
    }

    /// Removes the next connection: the latest one, of the eligible source with the fewest. In a flood, clients of
    /// earlier ones have given up or will have before their turn.
    pub fn pop_next(&mut self, may: impl Fn(&SourceAddress) -> bool) -> Option<(SourceAddress, u64, Arc<Notify>)> {
        let (.., source) = *self.order.iter().find(|(.., source)| may(source))?;
        self.change(source, |of| of.pop_last()).map(|(number, notify)| (source, number, notify))
    }

    fn change<T>(&mut self, source: SourceAddress, change: impl FnOnce(&mut BTreeMap<u64, Arc<Notify>>) -> T) -> T {
        let of = self.of.entry(source).or_default();
        let rank = |of: &BTreeMap<u64, _>| of.keys().next().map(|first| (of.len(), Reverse(*first), source));
        let before = rank(of);
        let changed = change(of);
        let after = rank(of);
        if of.is_empty() {
            self.of.remove(&source);
        }
        self.count = self.count + after.map_or(0, |it| it.0) - before.map_or(0, |it| it.0);
        before.map(|rank| self.order.remove(&rank));
        after.map(|rank| self.order.insert(rank));
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> SourceAddress {
        SourceAddress::new(Some(address.parse().unwrap()))
    }

    fn waiting(members: &[(SourceAddress, u64)]) -> (WaitingConnections, Vec<Arc<Notify>>) {
        let (mut waiting, mut evicted) = (WaitingConnections::default(), Vec::new());
        for (source, number) in members {
            evicted.push(Arc::new(Notify::new()));
            waiting.insert(*source, *number, evicted[evicted.len() - 1].clone());
        }
        (waiting, evicted)
    }

    #[test]
    fn addresses_of_one_host_are_one_source() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
        assert_ne!(source("192.0.2.1"), SourceAddress::new(None));
        let texts = ["192.0.2.1", "2001:db8::1"].map(|address| source(address).to_string());
        assert_eq!(texts, ["192.0.2.1", "2001:db8::/64"]);
    }

    #[test]
    fn the_largest_source_is_evicted_and_the_smallest_is_next() {
        let (few, many) = (source("192.0.2.1"), source("192.0.2.2"));
        let (mut waiting, evicted) = waiting(&[(few, 0), (many, 1), (many, 2), (many, 3), (few, 4)]);
        let is = |popped: Option<Arc<Notify>>, index: usize| popped.is_some_and(|it| Arc::ptr_eq(&it, &evicted[index]));
        assert!(is(waiting.pop_longest(), 1), "of the many");
        assert!(is(waiting.pop_longest(), 0), "as many from each: who has waited longest");
        let mut next =
            |may: &dyn Fn(&SourceAddress) -> bool| waiting.pop_next(may).map(|(source, number, _)| (source, number));
        assert_eq!(next(&|_| false), None);
        assert_eq!(next(&|source| *source != few), Some((many, 3)), "the last that came");
        assert_eq!(next(&|_| true), Some((few, 4)));
        assert!(waiting.remove(few, 4).is_none() && waiting.remove(many, 2).is_some());
        assert!(waiting.len() == 0 && waiting.pop_next(|_| true).is_none() && waiting.pop_longest().is_none());
        assert!(waiting.of.is_empty() && waiting.order.is_empty());
    }
}
