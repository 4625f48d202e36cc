//! The `Link` header by which registries continue a list (RFC 8288).

use http::HeaderMap;
use http::header::LINK;

/// The target of the `rel="next"` link, as it is written: absolute, relative, or only a query.
pub(super) fn next(headers: &HeaderMap) -> Option<String> {
    headers
        .get_all(LINK)
        .iter()
        .filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
        .find_map(next_of)
}

fn next_of(mut text: &str) -> Option<String> {
    while let Some((_, rest)) = text.split_once('<') {
        let (target, rest) = rest.split_once('>')?;
        let (parameters, after) = parameters_of(rest);
        if parameters.split(';').any(is_next) {
            return Some(target.trim().to_owned());
        }
        text = after;
    }
    None
}

/// Everything up to the comma that ends a link, and what comes after; commas in quotes end nothing.
fn parameters_of(text: &str) -> (&str, &str) {
    let mut is_quoted = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => {
                return (
                    text.get(..at).unwrap_or_default(),
                    text.get(at + 1..).unwrap_or_default(),
                );
            }
            _ => {}
        }
    }
    (text, "")
}

fn is_next(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(key, value)| {
        key.trim().eq_ignore_ascii_case("rel")
            && value
                .trim()
                .trim_matches('"')
                .split_ascii_whitespace()
                .any(|rel| rel.eq_ignore_ascii_case("next"))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn links_are_found_in_every_shape() {
        let cases = [
            (
                r#"</v2/a/tags/list?last=b&n=2>; rel="next""#,
                Some("/v2/a/tags/list?last=b&n=2"),
            ),
            (
                r"<https://r/v2/a/tags/list?n=2>;rel=next",
                Some("https://r/v2/a/tags/list?n=2"),
            ),
            (
                r#"</first>; rel="first", </v2/x?next_page=gA%3D,%3D>; title="a, b"; REL="NEXT""#,
                Some("/v2/x?next_page=gA%3D,%3D"),
            ),
            (r#"<?n=1>; rel="prev next""#, Some("?n=1")),
            (r#"</a>; rel="prev""#, None),
            ("</a", None),
            ("", None),
        ];
        for (header, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(LINK, HeaderValue::from_static(header));
            assert_eq!(next(&headers).as_deref(), expected, "{header}");
        }
    }
}
