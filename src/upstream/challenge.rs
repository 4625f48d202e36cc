//! What a registry says about who may ask: the `WWW-Authenticate` headers of a 401, as values.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;
use http_auth::{ChallengeParser, ChallengeRef};

/// A way to authenticate that larder knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token from a token service (distribution, "Token Authentication Specification").
    Bearer(Bearer),
    /// User and password (RFC 7617).
    Basic,
}

/// The parameters of a bearer challenge.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Bearer {
    /// Where the token service is; may be relative.
    pub(super) realm: String,
    /// The name the service has for the registry.
    pub(super) service: Option<String>,
    /// What the token has to allow.
    pub(super) scope: Option<String>,
    /// What was wrong with the token that came with the request.
    pub(super) error: Option<String>,
}

/// The best challenge of an answer: bearer before basic, whatever the order, case and number of headers.
pub(super) fn best(headers: &HeaderMap) -> Option<Challenge> {
    let mut has_basic = false;
    for value in headers.get_all(WWW_AUTHENTICATE) {
        let text = String::from_utf8_lossy(value.as_bytes());
        for challenge in parse(&text) {
            match challenge {
                Challenge::Bearer(bearer) => return Some(Challenge::Bearer(bearer)),
                Challenge::Basic => has_basic = true,
            }
        }
    }
    has_basic.then_some(Challenge::Basic)
}

/// The challenges of one header. What cannot be read (`Negotiate` with a token) is skipped up to the next known scheme.
fn parse(text: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    let mut rest = text;
    loop {
        let mut parser = ChallengeParser::new(rest);
        let is_whole = loop {
            match parser.next() {
                Some(Ok(challenge)) => found.extend(known(&challenge)),
                Some(Err(_)) => break false,
                None => break true,
            }
        };
        if is_whole {
            return found;
        }
        match next_scheme(rest) {
            Some(at) => rest = rest.get(at..).unwrap_or_default(),
            None => return found,
        }
    }
}

/// Where, after the beginning, a known scheme may start again.
fn next_scheme(text: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let starts = |word: &str| {
        lower.match_indices(word).map(|(at, _)| at).find(|at| {
            *at > 0
                && lower
                    .as_bytes()
                    .get(at - 1)
                    .is_some_and(|b| matches!(b, b' ' | b',' | b'\t'))
        })
    };
    [starts("bearer "), starts("basic ")].into_iter().flatten().min()
}

fn known(challenge: &ChallengeRef<'_>) -> Option<Challenge> {
    if challenge.scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !challenge.scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameter = |name: &str| {
        challenge
            .params
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_unescaped())
            .filter(|value| !value.is_empty())
    };
    let bearer = Bearer {
        realm: parameter("realm")?,
        service: parameter("service"),
        scope: parameter("scope"),
        error: parameter("error"),
    };
    Some(Challenge::Bearer(bearer))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn best_of(values: &[&str]) -> Option<Challenge> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                WWW_AUTHENTICATE,
                HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        best(&headers)
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Challenge::Bearer(Bearer {
            realm: realm.to_owned(),
            service: own(service),
            scope: own(scope),
            error: None,
        })
    }

    #[test]
    fn challenges_are_understood_in_every_shape() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let hub_read = Some(bearer(
            "https://auth.docker.io/token",
            Some("registry.docker.io"),
            Some("repository:a/b:pull,push"),
        ));
        assert_eq!(best_of(&[hub]), hub_read);
        assert_eq!(best_of(&[r#"Basic realm="x""#, hub]), hub_read);
        assert_eq!(best_of(&[&format!(r#"Basic realm="a, b", {hub}"#)]), hub_read);
        assert_eq!(best_of(&[&format!("Negotiate YIIabc==, {hub}")]), hub_read);
        assert_eq!(best_of(&["Negotiate", hub]), hub_read);
        assert_eq!(
            best_of(&[r#"bEARER SERVICE=s , Realm="/token""#]),
            Some(bearer("/token", Some("s"), None))
        );
        assert_eq!(
            best_of(&[r#"Bearer realm="a\"b""#]),
            Some(bearer("a\"b", None, None))
        );
        assert_eq!(best_of(&["BASIC realm=x"]), Some(Challenge::Basic));
        for none in [
            "",
            "Bearer",
            "Bearer service=x",
            "Digest nonce=1",
            "\u{1}\u{7f}é",
            "Bearer realm=\"open",
        ] {
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_bytes(none.as_bytes()) {
                headers.append(WWW_AUTHENTICATE, value);
            }
            assert_eq!(best(&headers), None, "{none}");
        }
        assert_eq!(best(&HeaderMap::new()), None);
    }

    proptest::proptest! {
        #[test]
        fn no_header_makes_it_panic_or_hang(text in "[ -~é]{0,60}", tail in "(Bearer |basic |,|=|\"){0,9}") {
            let _ = parse(&format!("{text}{tail}{text}"));
        }
    }
}
