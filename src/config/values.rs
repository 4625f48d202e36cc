//! The types a single value can have: text, switches, numbers, durations, sizes, paths, addresses, words out of a list.

use std::{path::PathBuf, time::Duration};

use super::{
    reader::FromScalar,
    scalar::{self, GoDuration},
    schema,
    tree::Scalar,
    types::{Address, ClientAuth, LogFormatter, LogLevel, Renew, SizeLimit, TlsVersion},
};
use crate::secret::Secret;

/// Writes text as YAML: bare when nothing else could be meant, between double quotes otherwise.
pub(crate) fn quoted(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || "/:._".contains(c))
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "/._-:@+%=".contains(c))
        && !text.ends_with(':')
        && scalar::boolean(text).is_none()
        && !scalar::is_null(text);
    if is_word {
        text.to_owned()
    } else {
        serde_json::Value::from(text).to_string()
    }
}

impl FromScalar for String {
    const EXPECTED: &'static str = "text";
    const HINT: Option<&'static str> = Some("write one value on the line of the key");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        Ok(scalar.text.clone())
    }

    fn show(&self) -> String {
        quoted(self)
    }
}

/// A user name: any text, also one that looks like nothing (`null`), because Gardener renders it without quotes.
#[derive(Debug)]
pub(crate) struct Username(pub(crate) String);

impl FromScalar for Username {
    const EXPECTED: &'static str = "text";
    const KEEPS_NULL: bool = true;

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        Ok(Self(scalar.text.clone()))
    }

    fn show(&self) -> String {
        quoted(&self.0)
    }
}

impl FromScalar for Secret {
    const EXPECTED: &'static str = "text";
    const KEEPS_NULL: bool = true;

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        Ok(Self::new(scalar.text.clone()))
    }

    fn show(&self) -> String {
        "'***'".to_owned()
    }
}

impl FromScalar for PathBuf {
    const EXPECTED: &'static str = "a path";

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        if scalar.text.contains('\0') {
            Err(None)
        } else {
            Ok(Self::from(&scalar.text))
        }
    }

    fn show(&self) -> String {
        quoted(&self.to_string_lossy())
    }
}

impl FromScalar for bool {
    const EXPECTED: &'static str = "`true` or `false`";
    const HINT: Option<&'static str> = Some("write `true` or `false`, without quotes");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        match scalar::boolean(&scalar.text) {
            Some(value) if scalar.is_plain => Ok(value),
            Some(_) => Err(Some("remove the quotes, they make it text".to_owned())),
            None => Err(None),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl FromScalar for i64 {
    const EXPECTED: &'static str = "a whole number";
    const HINT: Option<&'static str> = Some("write it in digits, without a unit and without quotes");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        match scalar::integer(&scalar.text) {
            Some(value) if scalar.is_plain => Ok(value),
            Some(_) => Err(Some("remove the quotes, they make it text".to_owned())),
            None => Err(None),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

const DURATION_HINT: &str = "write it like `30s`, `5m`, `168h` or `7d`";

impl FromScalar for GoDuration {
    const EXPECTED: &'static str = "a duration";
    const HINT: Option<&'static str> = Some(DURATION_HINT);

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        let bare = scalar::integer(&scalar.text)
            .filter(|_| scalar.is_plain)
            .map(Self);
        bare.or_else(|| scalar::duration(&scalar.text)).ok_or(None)
    }

    fn show(&self) -> String {
        self.to_std().map_or_else(
            || {
                format!(
                    "-{}",
                    scalar::show_duration(Duration::from_nanos(self.0.unsigned_abs()))
                )
            },
            scalar::show_duration,
        )
    }

    fn doubt(scalar: &Scalar) -> Option<String> {
        let nanoseconds = scalar::integer(&scalar.text).filter(|_| scalar.is_plain)?;
        let is_odd = nanoseconds != 0 && nanoseconds.unsigned_abs() < 1_000_000;
        is_odd.then(|| format!("a bare number is nanoseconds; for seconds write `{nanoseconds}s`"))
    }
}

impl FromScalar for Duration {
    const EXPECTED: &'static str = "a duration that is not negative";
    const HINT: Option<&'static str> = Some(DURATION_HINT);

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        GoDuration::from_scalar(scalar)?.to_std().ok_or(None)
    }

    fn show(&self) -> String {
        scalar::show_duration(*self)
    }

    fn doubt(scalar: &Scalar) -> Option<String> {
        GoDuration::doubt(scalar)
    }
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromScalar for Bytes {
    const EXPECTED: &'static str = "a number of bytes";
    const HINT: Option<&'static str> = Some("write it like `32MiB`");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        scalar::bytes(&scalar.text).map(Self).ok_or(None)
    }

    fn show(&self) -> String {
        scalar::show_bytes(self.0)
    }
}

impl FromScalar for SizeLimit {
    const EXPECTED: &'static str = "a number of bytes or a percentage from 1% to 100%";
    const HINT: Option<&'static str> = Some("write it like `85%` or `200GiB`");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        scalar::size_limit(&scalar.text).ok_or(None)
    }

    fn show(&self) -> String {
        match self {
            Self::Bytes(bytes) => scalar::show_bytes(*bytes),
            Self::Percent(percent) => format!("{percent}%"),
        }
    }
}

impl FromScalar for Address {
    const EXPECTED: &'static str = "an address to listen on";
    const HINT: Option<&'static str> = Some("write it like `:5000`, `127.0.0.1:5000` or `[::1]:5000`");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        address(&scalar.text).ok_or(None)
    }

    fn show(&self) -> String {
        let is_v6 = self.host.contains(':');
        let host = if is_v6 {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        quoted(&format!("{host}:{}", self.port))
    }
}

fn address(text: &str) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| port.parse().ok())??;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .filter(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())?,
        None => host,
    };
    let is_name = host
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-._:".contains(c));
    let is_bare_v6 = host.contains(':') && !text.starts_with('[');
    (is_name && !is_bare_v6).then(|| Address {
        host: host.to_owned(),
        port,
    })
}

/// A type that is one of a few words.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    const EXPECTED: &'static str;
    const WORDS: &'static [(&'static str, Self)];
}

/// Reads a [`Choice`], whatever its letter case.
#[derive(Debug)]
pub(crate) struct Word<C>(pub(crate) C);

impl<C: Choice> FromScalar for Word<C> {
    const EXPECTED: &'static str = C::EXPECTED;
    const HINT: Option<&'static str> = Some("write one of the words above; the letter case does not matter");

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        let found = C::WORDS
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(&scalar.text));
        found.map(|(_, choice)| Self(*choice)).ok_or_else(|| {
            let words = C::WORDS.iter().map(|(word, _)| *word);
            schema::nearest(&scalar.text, words).map(|near| format!("did you mean `{near}`?"))
        })
    }

    fn show(&self) -> String {
        let word = C::WORDS
            .iter()
            .find(|(_, choice)| *choice == self.0)
            .map(|(word, _)| *word);
        word.unwrap_or_default().to_owned()
    }
}

impl Choice for LogLevel {
    const EXPECTED: &'static str = "one of `error`, `warn`, `info`, `debug`";
    const WORDS: &'static [(&'static str, Self)] = &[
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
    ];
}

impl Choice for LogFormatter {
    const EXPECTED: &'static str = "one of `text`, `json`, `logstash`";
    const WORDS: &'static [(&'static str, Self)] = &[
        ("text", Self::Text),
        ("json", Self::Json),
        ("logstash", Self::Logstash),
    ];
}

impl Choice for ClientAuth {
    const EXPECTED: &'static str = "one of `require-and-verify-client-cert`, `verify-client-cert-if-given`, \
                                    `require-any-client-cert`, `request-client-cert`";
    const WORDS: &'static [(&'static str, Self)] = &[
        ("require-and-verify-client-cert", Self::RequireAndVerifyClientCert),
        ("verify-client-cert-if-given", Self::VerifyClientCertIfGiven),
        ("require-any-client-cert", Self::RequireAnyClientCert),
        ("request-client-cert", Self::RequestClientCert),
    ];
}

impl Choice for TlsVersion {
    const EXPECTED: &'static str = "`tls1.2` or `tls1.3`";
    const WORDS: &'static [(&'static str, Self)] = &[("tls1.2", Self::Tls12), ("tls1.3", Self::Tls13)];
}

impl Choice for Renew {
    const EXPECTED: &'static str = "`use` or `never`";
    const WORDS: &'static [(&'static str, Self)] = &[("use", Self::Use), ("never", Self::Never)];
}

/// `http.net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Net {
    Tcp,
    Unix,
}

impl Choice for Net {
    const EXPECTED: &'static str = "`tcp` or `unix`";
    const WORDS: &'static [(&'static str, Self)] = &[("tcp", Self::Tcp), ("unix", Self::Unix)];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_in_go() {
        for (text, host, port) in [
            (":5000", "", 5000),
            ("0.0.0.0:80", "0.0.0.0", 80),
            ("localhost:0", "localhost", 0),
            ("[::1]:5000", "::1", 5000),
            ("[::]:5000", "::", 5000),
        ] {
            assert_eq!(
                address(text),
                Some(Address {
                    host: host.to_owned(),
                    port
                }),
                "{text}"
            );
        }
        for text in [
            "",
            "5000",
            ":",
            "::1:5000",
            ":http",
            ":99999",
            "[x]:1",
            "[::1]",
            "http://x:1",
            ":+1",
            "a b:1",
        ] {
            assert_eq!(address(text), None, "{text}");
        }
        assert_eq!(
            address("[::1]:1").unwrap().socket_addr().unwrap().to_string(),
            "[::1]:1"
        );
    }

    #[test]
    fn text_is_quoted_where_yaml_would_read_something_else() {
        for text in ["docker.io", "/var/lib", ":5000", "https://x/y", "a%b"] {
            assert_eq!(quoted(text), text);
        }
        for text in [
            "", "true", "null", "0123", "a b", "a: b", "a#", "*", "x:", "- y", "%", "ä", "a\nb", "off",
        ] {
            assert!(quoted(text).starts_with('"'), "{text}");
        }
    }
}
