//! Patterns of repository names, as `larder.hosted.repositories` has them. Pure values.

/// Which repositories: a name in which each `*` stands for any text, slashes included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Parses a pattern; `None` for one that no name can match.
    pub fn parse(text: &str) -> Option<Self> {
        let is_of_name = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-/*".contains(&b);
        let fits = !text.is_empty()
            && text.bytes().all(is_of_name)
            && !text.starts_with('/')
            && !text.ends_with('/')
            && !text.contains("//");
        fits.then(|| Self(text.to_owned()))
    }

    /// Whether it matches a name.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn a_star_stands_for_any_text_and_the_rest_for_itself() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*", "a/b/c", true),
            ("team/*", "team/a", true),
            ("team/*", "team/a/b", true),
            ("team/*", "team", false),
            ("team/*", "teams/a", false),
            ("team/app", "team/app", true),
            ("team/app", "team/app2", false),
            ("*/app", "a/b/app", true),
            ("*/app", "app", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "acb", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(
                Pattern::parse(pattern).unwrap().matches(name),
                expected,
                "{pattern} {name}"
            );
        }
        for bad in ["", "/a", "a/", "A", "a b", "a//b", "a:b"] {
            assert_eq!(Pattern::parse(bad), None, "{bad}");
        }
    }
}
