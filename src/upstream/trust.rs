//! Which hosts belong together: whom credentials may go to, and where a registry may send us.

use std::net::IpAddr;

use url::{Host, Url};

/// Whether both have the same scheme, host and port.
pub(super) fn is_same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme() && is_same_host_and_port(a, b)
}

fn is_same_host_and_port(a: &Url, b: &Url) -> bool {
    a.host() == b.host() && a.port_or_known_default() == b.port_or_known_default()
}

/// Whether a token service at `realm` may get the credentials of `registry`: it has the same host and port, the same
/// registrable domain, or is among `allowed` (`host` or `host:port`). An address or a name of one label has no domain.
pub(super) fn is_own_realm(registry: &Url, realm: &Url, allowed: &[String]) -> bool {
    is_same_host_and_port(registry, realm)
        || shares_registrable_domain(registry, realm)
        || allowed.iter().any(|entry| names(entry, realm))
}

fn shares_registrable_domain(a: &Url, b: &Url) -> bool {
    match (registrable_domain(a), registrable_domain(b)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

fn registrable_domain(url: &Url) -> Option<String> {
    let Some(Host::Domain(domain)) = url.host() else {
        return None;
    };
    let domain = domain.trim_end_matches('.').to_ascii_lowercase();
    let found = psl::domain(domain.as_bytes())?;
    // Under a suffix that is on no list (`corp`, `internal`) the last two labels still are one owner's, as in distribution.
    std::str::from_utf8(found.as_bytes()).ok().map(str::to_owned)
}

fn names(entry: &str, url: &Url) -> bool {
    let entry = entry.trim().trim_end_matches('/');
    let Ok(named) = Url::parse(&format!("{}://{entry}", url.scheme())) else {
        return false;
    };
    let has_port = entry
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    named.host() == url.host() && (!has_port || named.port_or_known_default() == url.port_or_known_default())
}

/// How far away from the public network a host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Zone {
    /// Anything with a public name or address.
    Public,
    /// A private address, or a name that only means something at home.
    Private,
    /// This machine, or this link: loopback, cloud metadata services.
    Local,
}

/// The zone of a URL's host, as far as its text tells.
pub(super) fn zone(url: &Url) -> Zone {
    match url.host() {
        Some(Host::Ipv4(address)) => zone_of(IpAddr::V4(address)),
        Some(Host::Ipv6(address)) => zone_of(IpAddr::V6(address)),
        Some(Host::Domain(domain)) => zone_of_name(&domain.trim_end_matches('.').to_ascii_lowercase()),
        None => Zone::Local,
    }
}

fn zone_of(address: IpAddr) -> Zone {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            if v4.is_loopback() || v4.is_link_local() || a == 0 || v4.is_broadcast() {
                Zone::Local
            } else if v4.is_private() || (a == 100 && (64..128).contains(&b)) {
                Zone::Private
            } else {
                Zone::Public
            }
        }
        IpAddr::V6(v6) => {
            if v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() {
                Zone::Local
            } else if v6.is_unique_local() {
                Zone::Private
            } else {
                Zone::Public
            }
        }
    }
}

fn zone_of_name(name: &str) -> Zone {
    if name == "localhost" || name.ends_with(".localhost") {
        return Zone::Local;
    }
    let has_public_suffix = psl::suffix(name.as_bytes()).is_some_and(|suffix| suffix.is_known());
    if has_public_suffix {
        Zone::Public
    } else {
        Zone::Private
    }
}

/// Whether a registry at `from` may send us to `to` without a cache on an inner network becoming its way in.
///
/// A public registry may send us to any name (names are the business of whoever runs the resolver), but to no inner
/// address; one at home may send us anywhere but to this machine's own surroundings, unless it is there itself.
pub(super) fn may_send_to(from: &Url, to: &Url) -> bool {
    let is_literal = matches!(to.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)));
    match zone(to) {
        Zone::Public => true,
        Zone::Private => !is_literal || zone(from) > Zone::Public,
        Zone::Local => zone(from) == Zone::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn credentials_go_only_to_realms_that_are_the_registrys_own_or_allowed() {
        let allowed = [
            "login.example.net".to_owned(),
            "tokens.example.net:8443".to_owned(),
            "127.0.0.1:9".to_owned(),
        ];
        let cases = [
            (
                "https://registry-1.docker.io",
                "https://auth.docker.io/token",
                true,
            ),
            ("https://quay.io", "https://quay.io/v2/auth", true),
            ("https://registry.gitlab.com", "https://gitlab.com/jwt/auth", true),
            ("https://evil.co.uk", "https://other.co.uk/token", false),
            ("https://alice.github.io", "https://bob.github.io/token", false),
            (
                "https://registry.docker.io.evil.com",
                "https://auth.docker.io",
                false,
            ),
            ("https://10.0.0.1:5000", "https://10.0.0.1:5000/token", true),
            ("https://10.0.0.1:5000", "https://10.0.0.1:5001/token", false),
            ("http://localhost:5000", "http://localhost:5001/token", false),
            ("http://localhost:5000", "http://localhost:5000/token", true),
            ("https://registry", "https://auth/token", false),
            (
                "https://registry.corp.internal",
                "https://auth.corp.internal/token",
                true,
            ),
            (
                "https://registry.example.com",
                "https://login.example.net/x",
                true,
            ),
            (
                "https://registry.example.com",
                "https://login.example.net:444/x",
                true,
            ),
            (
                "https://registry.example.com",
                "https://tokens.example.net/x",
                false,
            ),
            (
                "https://registry.example.com",
                "https://tokens.example.net:8443/x",
                true,
            ),
            ("http://127.0.0.1:1", "http://127.0.0.1:9/x", true),
            (
                "https://registry.example.com",
                "https://sub.login.example.net/x",
                false,
            ),
        ];
        for (registry, realm, is_own) in cases {
            assert_eq!(
                is_own_realm(&url(registry), &url(realm), &allowed),
                is_own,
                "{registry} {realm}"
            );
        }
    }

    #[test]
    fn a_public_registry_does_not_send_us_into_inner_networks() {
        let cases = [
            (
                "https://ghcr.io",
                "https://pkg-containers.githubusercontent.com/x",
                true,
            ),
            ("https://ghcr.io", "https://8.8.8.8/x", true),
            ("https://ghcr.io", "https://127.0.0.1/x", false),
            ("https://ghcr.io", "https://localhost/x", false),
            ("https://ghcr.io", "https://169.254.169.254/latest", false),
            ("https://ghcr.io", "https://2852039166/latest", false),
            ("https://ghcr.io", "https://[::1]/x", false),
            ("https://ghcr.io", "https://[::ffff:10.0.0.1]/x", false),
            ("https://ghcr.io", "https://[fd00::1]/x", false),
            ("https://ghcr.io", "https://192.168.1.1/x", false),
            ("https://ghcr.io", "https://100.64.0.1/x", false),
            ("https://ghcr.io", "https://0.0.0.0/x", false),
            ("https://10.0.0.1", "https://10.0.0.2/x", true),
            ("https://10.0.0.1", "https://127.0.0.1/x", false),
            ("https://harbor.corp.internal", "https://10.0.0.2:9000/x", true),
            ("http://127.0.0.1:1", "http://127.0.0.1:2/x", true),
            ("http://localhost:1", "http://10.0.0.1/x", true),
        ];
        for (from, to, may) in cases {
            assert_eq!(may_send_to(&url(from), &url(to)), may, "{from} {to}");
        }
    }
}
