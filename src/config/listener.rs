//! From the tree to [`Config`](super::Config): the listeners, their TLS, headers and bounds.

use std::{path::PathBuf, time::Duration};

use http::{HeaderName, HeaderValue};

use super::{
    error::Origin,
    reader::{FromScalar, Reader, Section},
    sections::filled,
    types::{Address, ClientAuth, Debug, Http, HttpLimits, Listen, Tls, TlsVersion},
    values::{Bytes, Net, Word, quoted},
};

const DEFAULT_PORT: u16 = 5000;

/// The main listener; `None` when it is wrong.
pub(crate) fn http(reader: &mut Reader<'_>, root: &Section<'_>) -> Option<Http> {
    let http = root.section("http");
    let listen = listen(reader, &http);
    let prefix = prefix(reader, &http);
    let drain_timeout = reader.get_or(&http, "draintimeout", Duration::ZERO);
    let headers = headers(reader, &http.section("headers"));
    let tls = tls(reader, &http.section("tls"));
    let is_http2_enabled = !reader.get_or(&http.section("http2"), "disabled", false);
    let is_h2c_enabled = reader.get_or(&http.section("h2c"), "enabled", false);
    let limits = limits(reader, &root.section("larder").section("http"));
    Some(Http {
        listen: listen?,
        prefix,
        headers,
        drain_timeout,
        tls,
        is_http2_enabled,
        is_h2c_enabled,
        limits,
    })
}

/// The admin listener.
pub(crate) fn debug(reader: &mut Reader<'_>, root: &Section<'_>) -> Option<Debug> {
    let debug = root.section("http").section("debug");
    let address = reader.get::<Address>(&debug, "addr")?;
    let prometheus = debug.section("prometheus");
    let is_enabled = reader.get_or(&prometheus, "enabled", false);
    let path = filled(Some(reader.get_or(&prometheus, "path", "/metrics".to_owned())));
    let path = path.unwrap_or_else(|| "/metrics".to_owned());
    if !path.starts_with('/') {
        reader.problem(
            &prometheus,
            "path",
            format!("`{path}` does not begin with `/`"),
            None,
        );
    }
    Some(Debug {
        address,
        metrics_path: is_enabled.then_some(path),
    })
}

fn listen(reader: &mut Reader<'_>, http: &Section<'_>) -> Option<Listen> {
    let net = reader.get_or(http, "net", Word(Net::Tcp)).0;
    if net == Net::Unix {
        let path = reader.get::<PathBuf>(http, "addr");
        if path.is_none() {
            reader.problem(
                http,
                "addr",
                "is missing",
                Some("with `net: unix` it is the path of the socket"),
            );
        }
        return path.map(Listen::Unix);
    }
    if http.is_filled("addr") {
        return reader.get::<Address>(http, "addr").map(Listen::Tcp);
    }
    reader.warn(
        http,
        "addr",
        format!("is not set; distribution takes any free port, larder takes {DEFAULT_PORT}"),
    );
    let address = Address {
        host: String::new(),
        port: DEFAULT_PORT,
    };
    reader.record(http, "addr", address.show(), Origin::Default);
    Some(Listen::Tcp(address))
}

fn prefix(reader: &mut Reader<'_>, http: &Section<'_>) -> String {
    let prefix = reader.get::<String>(http, "prefix").unwrap_or_default();
    let is_path = prefix.is_empty() || prefix.starts_with('/') && !prefix.contains(['?', '#', ' ']);
    if !is_path {
        reader.problem(
            http,
            "prefix",
            format!("`{prefix}` is no path"),
            Some("write it like `/cache/`"),
        );
    }
    prefix.trim_end_matches('/').to_owned()
}

fn headers(reader: &mut Reader<'_>, headers: &Section<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let mut read = Vec::new();
    for entry in headers.node().map(super::tree::Node::entries).unwrap_or_default() {
        let Ok(name) = HeaderName::from_bytes(entry.key.as_bytes()) else {
            reader.problem(headers, &entry.key, "is no name of a header", None);
            continue;
        };
        for value in reader.list::<String>(headers, &entry.key) {
            match HeaderValue::from_str(&value) {
                Ok(value) => read.push((name.clone(), value)),
                Err(_) => reader.problem(headers, &entry.key, "a value cannot stand in a header", None),
            }
        }
    }
    read
}

/// Whoever asks for TLS gets TLS or an error, never a plain listener.
fn tls(reader: &mut Reader<'_>, tls: &Section<'_>) -> Option<Tls> {
    refuse_letsencrypt(reader, tls);
    let certificate = filled(reader.get::<String>(tls, "certificate"));
    let key = filled(reader.get::<String>(tls, "key"));
    let client_cas = reader.list::<PathBuf>(tls, "clientcas");
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => {
            reader.problem(tls, "key", "is missing beside `certificate`", None);
            return None;
        }
        (None, Some(_)) => {
            reader.problem(tls, "certificate", "is missing beside `key`", None);
            return None;
        }
        (None, None) if client_cas.is_empty() => return None,
        (None, None) => {
            let hint = "client certificates need TLS: set `http.tls.certificate` and `http.tls.key`";
            reader.problem(tls, "clientcas", "has no certificate beside it", Some(hint));
            return None;
        }
    };
    let client_auth = reader
        .get_or(tls, "clientauth", Word(ClientAuth::RequireAndVerifyClientCert))
        .0;
    let minimum_version = reader.get_or(tls, "minimumtls", Word(TlsVersion::Tls12)).0;
    let cipher_suites = cipher_suites(reader, tls);
    Some(Tls {
        certificate: certificate.into(),
        key: key.into(),
        client_cas,
        client_auth,
        minimum_version,
        cipher_suites,
    })
}

fn refuse_letsencrypt(reader: &mut Reader<'_>, tls: &Section<'_>) {
    let letsencrypt = tls.section("letsencrypt");
    if letsencrypt.is_filled("cachefile") || letsencrypt.is_filled("hosts") {
        let hint = "let a tool such as cert-manager or certbot write the files of `http.tls.certificate` and `key`; \
                    larder loads them again when they change";
        reader.problem(
            tls,
            "letsencrypt",
            "larder does not ask for certificates itself",
            Some(hint),
        );
    }
}

/// What rustls has of TLS 1.2.
const SUITES: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// What distribution has beside them: too weak for rustls, or of TLS 1.3, where nothing is chosen.
const OTHER_SUITES: [&str; 15] = [
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];

fn cipher_suites(reader: &mut Reader<'_>, tls: &Section<'_>) -> Vec<String> {
    let names = reader.list::<String>(tls, "ciphersuites");
    let is_asked = !names.is_empty();
    let mut suites = Vec::new();
    for name in names {
        if SUITES.contains(&name.as_str()) {
            suites.push(name);
        } else if OTHER_SUITES.contains(&name.as_str()) {
            reader.warn(
                tls,
                "ciphersuites",
                format!("`{name}` cannot be chosen here and is left out"),
            );
        } else {
            let hint = super::schema::nearest(&name, SUITES).map(|near| format!("did you mean `{near}`?"));
            let message = format!("`{}` is no cipher suite", quoted(&name));
            reader.problem(tls, "ciphersuites", message, hint.as_deref());
        }
    }
    if is_asked && suites.is_empty() {
        let hint = format!("larder has {}", SUITES.join(", "));
        reader.problem(tls, "ciphersuites", "none of them can be used", Some(&hint));
    }
    suites
}

fn limits(reader: &mut Reader<'_>, http: &Section<'_>) -> HttpLimits {
    const LEAST_HEADER_BYTES: u64 = 8 << 10;
    const MOST_HEADER_BYTES: u64 = 1 << 20;
    let header_timeout = positive(reader, http, "headertimeout", Duration::from_secs(10));
    let idle_timeout = positive(reader, http, "idletimeout", Duration::from_mins(2));
    let write_stall_timeout = positive(reader, http, "writestall", Duration::from_mins(5));
    let bytes = reader.get_or(http, "maxheaderbytes", Bytes(64 << 10)).0;
    if !(LEAST_HEADER_BYTES..=MOST_HEADER_BYTES).contains(&bytes) {
        reader.problem(http, "maxheaderbytes", "must be from 8KiB to 1MiB", None);
    }
    let max_header_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    HttpLimits {
        header_timeout,
        idle_timeout,
        write_stall_timeout,
        max_header_bytes,
    }
}

/// A duration that must be longer than none.
pub(crate) fn positive(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    key: &str,
    default: Duration,
) -> Duration {
    let duration = reader.get_or(section, key, default);
    if duration.is_zero() {
        reader.problem(
            section,
            key,
            "must be longer than 0",
            Some("leave it out for the default"),
        );
    }
    duration
}
