//! Client addresses that the server may accept without authentication.
//!
//! Owns their format and coverage. Must never treat similar addresses as equal, except that an IPv4-mapped IPv6 address
//! counts as the IPv4 address.

use std::net::IpAddr;

/// Length of the prefix of IPv4-mapped IPv6 addresses.
const MAPPED: u8 = 96;

/// Origin of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// One of the proxy's Unix sockets.
    Unix,
    /// An IP address.
    Address(IpAddr),
    /// An IP address that a load balancer has announced. Never this machine's own.
    Announced(IpAddr),
    /// The client has disconnected, or its load balancer does not know its address.
    Unknown,
}

/// The text is not an origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the text")]
pub enum OriginError {
    #[error("`{0}` is neither `unix` nor an address or network, such as 127.0.0.1, 10.0.0.0/8 or ::1")]
    NotAnOrigin(String),
    #[error("`{0}` is not an address or network, such as 127.0.0.1, 10.0.0.0/8 or ::1")]
    NotANetwork(String),
}

/// An allowed origin of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// The proxy's Unix sockets.
    Unix,
    /// An address and the length of its prefix.
    Network(IpAddr, u8),
}

impl Origin {
    /// True for loopback addresses.
    pub fn is_loopback(self) -> bool {
        matches!(self, Origin::Address(address) if address.to_canonical().is_loopback())
    }
}

impl AllowedOrigin {
    /// True if the client's origin is included.
    pub fn covers(self, origin: Origin) -> bool {
        match (self, origin) {
            (AllowedOrigin::Unix, Origin::Unix) => true,
            // The load balancer, not the client, would be on this machine.
            (_, Origin::Announced(address)) if address.to_canonical().is_loopback() => false,
            (AllowedOrigin::Network(network, bits), Origin::Address(address) | Origin::Announced(address)) => {
                match (network, address.to_canonical()) {
                    (IpAddr::V4(network), IpAddr::V4(address)) => {
                        begins_alike(network.to_bits().into(), address.to_bits().into(), 32, bits)
                    }
                    (IpAddr::V6(network), IpAddr::V6(address)) => {
                        begins_alike(network.to_bits(), address.to_bits(), 128, bits)
                    }
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

fn begins_alike(one: u128, other: u128, width: u8, bits: u8) -> bool {
    (one ^ other).checked_shr((width - bits).into()).unwrap_or(0) == 0
}

/// Reads `ADDRESS` or `ADDRESS/BITS`.
pub(super) fn network(text: &str) -> Result<AllowedOrigin, OriginError> {
    match allowed(text) {
        Ok(network @ AllowedOrigin::Network(..)) => Ok(network),
        Ok(AllowedOrigin::Unix) | Err(_) => Err(OriginError::NotANetwork(text.to_owned())),
    }
}

/// Reads `ADDRESS`, `ADDRESS/BITS` or `unix`.
pub(super) fn allowed(text: &str) -> Result<AllowedOrigin, OriginError> {
    if text == "unix" {
        return Ok(AllowedOrigin::Unix);
    }
    let fault = || OriginError::NotAnOrigin(text.to_owned());
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().map_err(|_| fault())?;
    let bits: u8 = match bits {
        Some(bits) => bits.parse().map_err(|_| fault())?,
        None if address.is_ipv4() => 32,
        None => 128,
    };
    match (address, address.to_canonical()) {
        (IpAddr::V6(_), network @ IpAddr::V4(_)) if (MAPPED..=128).contains(&bits) => {
            Ok(AllowedOrigin::Network(network, bits - MAPPED))
        }
        (IpAddr::V4(_), network) if bits <= 32 => Ok(AllowedOrigin::Network(network, bits)),
        (IpAddr::V6(_), network @ IpAddr::V6(_)) if bits <= 128 => Ok(AllowedOrigin::Network(network, bits)),
        _ => Err(fault()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(setting: &str, address: &str) -> bool {
        allowed(setting).unwrap().covers(Origin::Address(address.parse().unwrap()))
    }

    #[test]
    fn an_announced_address_is_never_local() {
        let announced = |address: &str| Origin::Announced(address.parse().unwrap());
        assert!(allowed("192.0.2.0/24").unwrap().covers(announced("192.0.2.1")));
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert!(!announced(local).is_loopback());
            for setting in ["127.0.0.0/8", "0.0.0.0/0", "::/0", "::1", "unix"] {
                assert!(!allowed(setting).unwrap().covers(announced(local)), "{setting} {local}");
            }
        }
        assert!(network("unix").is_err() && network("192.0.2.1").is_ok());
    }

    #[test]
    fn networks_cover_addresses_with_their_prefix() {
        for (setting, address) in [
            ("10.1.0.0/16", "10.1.255.1"),
            ("10.1.2.3/8", "10.9.9.9"),
            ("0.0.0.0/0", "192.0.2.1"),
            ("192.0.2.1/32", "::ffff:192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:10.0.0.0/104", "10.9.9.9"),
            ("fd00::/8", "fdff::1"),
            ("::/0", "2001:db8::1"),
        ] {
            assert!(covers(setting, address), "{setting}, {address}");
        }
        for (setting, address) in [
            ("10.1.0.0/16", "10.2.0.1"),
            ("192.0.2.1/32", "192.0.2.2"),
            ("192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::2"),
            // Another address family does not match.
            ("::/0", "10.0.0.1"),
            ("0.0.0.0/0", "::1"),
            ("unix", "127.0.0.1"),
        ] {
            assert!(!covers(setting, address), "{setting}, {address}");
        }
        assert!(allowed("unix").unwrap().covers(Origin::Unix));
        assert!(!allowed("0.0.0.0/0").unwrap().covers(Origin::Unix));
        assert!(!allowed("::/0").unwrap().covers(Origin::Unknown));
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for (address, is_loopback) in
            [("127.0.0.1", true), ("127.8.9.1", true), ("::1", true), ("::ffff:127.0.0.1", true), ("10.0.0.1", false)]
        {
            assert_eq!(Origin::Address(address.parse().unwrap()).is_loopback(), is_loopback, "{address}");
        }
        assert!(!Origin::Unix.is_loopback());
    }

    #[test]
    fn invalid_origins_are_rejected() {
        for text in [
            "",
            "Unix",
            "10.0.0",
            "localhost",
            "10.0.0.1/",
            "10.0.0.0/33",
            "::1/129",
            "host/8",
            "10.0.0.0/-1",
            "10.0.0.0/8/8",
            "::ffff:10.0.0.0/8",
        ] {
            assert!(allowed(text).is_err(), "{text}");
        }
    }
}
