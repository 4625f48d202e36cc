//! Every key distribution 2.8 and 3.x and larder know: its shape, its name in the environment, and whether it does
//! anything here. What a value means is decided where it is read; this table is for environment variables, for
//! unknown keys, and for keys that are accepted without effect.

/// What stands under a key.
#[derive(Debug)]
pub(crate) enum Shape {
    /// One value.
    Leaf(Kind),
    /// A list.
    List(&'static Shape),
    /// A mapping with fixed keys.
    Keys(&'static [Field]),
    /// A mapping with fixed keys of which one names a driver, or just the driver's name.
    Driver(&'static [Field]),
    /// A mapping with free keys.
    Map(&'static Shape),
    /// Anything.
    Opaque,
}

/// What one value is; only looked at for keys without effect, as the others are read by who needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Flag,
    Integer,
    Duration,
}

/// One key.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) shape: Shape,
    /// Whether larder does anything with it.
    pub(crate) is_used: bool,
    /// The name of the field in distribution's source, upper case, where it is not the key.
    variable: Option<&'static str>,
}

impl Field {
    const fn used(key: &'static str, shape: Shape) -> Self {
        Self {
            key,
            shape,
            is_used: true,
            variable: None,
        }
    }

    const fn idle(key: &'static str, shape: Shape) -> Self {
        Self {
            key,
            shape,
            is_used: false,
            variable: None,
        }
    }

    const fn with_variable(mut self, variable: &'static str) -> Self {
        self.variable = Some(variable);
        self
    }

    /// The segment that names it in an environment variable.
    pub(crate) fn segment(&self) -> String {
        self.variable
            .map_or_else(|| self.key.to_ascii_uppercase(), str::to_owned)
    }
}

use Kind::{Duration, Flag, Integer, Text};
use Shape::{Driver, Keys, Leaf, List, Map, Opaque};

const TEXTS: Shape = List(&Leaf(Text));

/// The whole file.
pub(crate) const ROOT: Shape = Keys(&SECTIONS);

/// The top level, in the order in which people read it.
pub(crate) static SECTIONS: [Field; 18] = [
    Field::used("version", Leaf(Text)),
    Field::used("log", LOG),
    Field::used("loglevel", Leaf(Text)),
    Field::used("storage", STORAGE),
    Field::used("auth", AUTH),
    Field::used("http", HTTP),
    Field::used("health", HEALTH),
    Field::used("catalog", Keys(&[Field::used("maxentries", Leaf(Integer))])),
    Field::used("tags", Keys(&[Field::used("maxtags", Leaf(Integer))])),
    Field::used("proxy", PROXY),
    Field::used("larder", LARDER),
    Field::idle("middleware", Opaque),
    Field::idle("notifications", Opaque),
    Field::idle("redis", Opaque),
    Field::idle("validation", Opaque),
    Field::idle("policy", Opaque),
    Field::idle("compatibility", Opaque),
    Field::idle("reporting", Opaque),
];

const LOG: Shape = Keys(&[
    Field::used("level", Leaf(Text)),
    Field::used("formatter", Leaf(Text)),
    Field::used("fields", Map(&Opaque)),
    Field::used("accesslog", Keys(&[Field::used("disabled", Leaf(Flag))])),
    Field::idle("reportcaller", Leaf(Flag)),
    Field::idle("hooks", List(&Opaque)),
]);

const STORAGE: Shape = Driver(&[
    Field::used(
        "filesystem",
        Keys(&[
            Field::used("rootdirectory", Leaf(Text)),
            Field::idle("maxthreads", Leaf(Integer)),
        ]),
    ),
    Field::used("delete", Keys(&[Field::used("enabled", Leaf(Flag))])),
    Field::idle(
        "cache",
        Keys(&[
            Field::idle("blobdescriptor", Leaf(Text)),
            Field::idle("layerinfo", Leaf(Text)),
            Field::idle("blobdescriptorsize", Leaf(Integer)),
        ]),
    ),
    Field::idle(
        "maintenance",
        Keys(&[
            Field::idle(
                "uploadpurging",
                Keys(&[
                    Field::idle("enabled", Leaf(Flag)),
                    Field::idle("age", Leaf(Duration)),
                    Field::idle("interval", Leaf(Duration)),
                    Field::idle("dryrun", Leaf(Flag)),
                ]),
            ),
            Field::idle("readonly", Keys(&[Field::idle("enabled", Leaf(Flag))])),
        ]),
    ),
    Field::idle("redirect", Keys(&[Field::idle("disable", Leaf(Flag))])),
    Field::idle("tag", Keys(&[Field::idle("concurrencylimit", Leaf(Integer))])),
]);

const AUTH: Shape = Driver(&[
    Field::used(
        "htpasswd",
        Keys(&[Field::used("realm", Leaf(Text)), Field::used("path", Leaf(Text))]),
    ),
    Field::used("none", Opaque),
    // These are refused where they are read, with a reason.
    Field::used("token", Opaque),
    Field::used("silly", Opaque),
]);

const HTTP: Shape = Keys(&[
    Field::used("addr", Leaf(Text)),
    Field::used("net", Leaf(Text)),
    Field::used("prefix", Leaf(Text)),
    Field::idle("host", Leaf(Text)),
    Field::idle("relativeurls", Leaf(Flag)),
    Field::idle("secret", Leaf(Text)),
    Field::used("draintimeout", Leaf(Duration)),
    Field::used("headers", Map(&TEXTS)),
    Field::used("tls", TLS),
    Field::used("http2", Keys(&[Field::used("disabled", Leaf(Flag))])),
    Field::used("h2c", Keys(&[Field::used("enabled", Leaf(Flag))])),
    Field::used(
        "debug",
        Keys(&[
            Field::used("addr", Leaf(Text)),
            Field::used(
                "prometheus",
                Keys(&[
                    Field::used("enabled", Leaf(Flag)),
                    Field::used("path", Leaf(Text)),
                ]),
            ),
        ]),
    ),
]);

const TLS: Shape = Keys(&[
    Field::used("certificate", Leaf(Text)),
    Field::used("key", Leaf(Text)),
    Field::used("clientcas", TEXTS),
    Field::used("clientauth", Leaf(Text)),
    Field::used("minimumtls", Leaf(Text)),
    Field::used("ciphersuites", TEXTS),
    // Refused where it is read: it asks for TLS, and there must be none without it.
    Field::used(
        "letsencrypt",
        Keys(&[
            Field::used("cachefile", Leaf(Text)),
            Field::used("email", Leaf(Text)),
            Field::used("hosts", TEXTS),
            Field::used("directoryurl", Leaf(Text)),
        ]),
    ),
]);

const HEALTH: Shape = Keys(&[
    Field::used(
        "storagedriver",
        Keys(&[
            Field::used("enabled", Leaf(Flag)),
            Field::used("interval", Leaf(Duration)),
            Field::used("threshold", Leaf(Integer)),
        ]),
    ),
    Field::idle("file", List(&Opaque)).with_variable("FILECHECKERS"),
    Field::idle("http", List(&Opaque)).with_variable("HTTPCHECKERS"),
    Field::idle("tcp", List(&Opaque)).with_variable("TCPCHECKERS"),
]);

const EXEC: Shape = Keys(&[
    Field::used("command", Leaf(Text)),
    Field::used("lifetime", Leaf(Duration)),
]);

const PROXY: Shape = Keys(&[
    Field::used("remoteurl", Leaf(Text)),
    Field::used("username", Leaf(Text)),
    Field::used("password", Leaf(Text)),
    Field::used("exec", EXEC),
    Field::used("ttl", Leaf(Duration)),
    Field::idle("cachewritetimeout", Leaf(Duration)),
]);

const LARDER: Shape = Keys(&[
    Field::used("maxsize", Leaf(Text)),
    Field::used("tagttl", Leaf(Duration)),
    Field::used("negativettl", Leaf(Duration)),
    Field::used(
        "timeouts",
        Keys(&[
            Field::used("connect", Leaf(Duration)),
            Field::used("header", Leaf(Duration)),
            Field::used("idle", Leaf(Duration)),
            Field::used("stale", Leaf(Duration)),
        ]),
    ),
    Field::used(
        "http",
        Keys(&[
            Field::used("headertimeout", Leaf(Duration)),
            Field::used("idletimeout", Leaf(Duration)),
            Field::used("writestall", Leaf(Duration)),
            Field::used("maxheaderbytes", Leaf(Text)),
        ]),
    ),
    Field::used("realms", TEXTS),
    Field::used("passwordfile", Leaf(Text)),
    Field::used("ca", Leaf(Text)),
    Field::used("clientcertificate", Leaf(Text)),
    Field::used("clientkey", Leaf(Text)),
    Field::used("insecure", Leaf(Flag)),
    Field::used("upstreams", List(&UPSTREAM)),
    Field::used("defaultupstream", Leaf(Text)),
    Field::used(
        "gc",
        Keys(&[
            Field::used("renew", Leaf(Text)),
            Field::used("interval", Leaf(Duration)),
        ]),
    ),
    Field::used(
        "scrub",
        Keys(&[
            Field::used("interval", Leaf(Duration)),
            Field::used("rate", Leaf(Text)),
        ]),
    ),
    Field::used("cachesize", Leaf(Text)),
    Field::used(
        "hosted",
        Keys(&[
            Field::used("repositories", TEXTS),
            Field::used("delete", Leaf(Flag)),
            Field::used("uploadexpiry", Leaf(Duration)),
            Field::used("quota", Leaf(Text)),
        ]),
    ),
]);

const UPSTREAM: Shape = Keys(&[
    Field::used("name", Leaf(Text)),
    Field::used("remoteurl", Leaf(Text)),
    Field::used("aliases", TEXTS),
    Field::used("username", Leaf(Text)),
    Field::used("password", Leaf(Text)),
    Field::used("passwordfile", Leaf(Text)),
    Field::used("exec", EXEC),
    Field::used("ca", Leaf(Text)),
    Field::used("clientcertificate", Leaf(Text)),
    Field::used("clientkey", Leaf(Text)),
    Field::used("insecure", Leaf(Flag)),
]);

/// The known name nearest to a mistyped one, when it is near enough to be meant.
pub(crate) fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed = simplified(typed);
    let most = (typed.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&typed, &simplified(name)), name))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Letter case, underscores and hyphens are the usual slips, as no key has any.
fn simplified(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .take(64)
        .flat_map(char::to_lowercase)
        .collect()
}

/// Where in the file a key of exactly this name belongs.
pub(crate) fn home_of(key: &str) -> Option<String> {
    fn search(shape: &Shape, path: &str, key: &str) -> Option<String> {
        let (Keys(fields) | Driver(fields)) = shape else {
            return None;
        };
        let join = |name: &str| {
            if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}.{name}")
            }
        };
        let here = fields
            .iter()
            .find(|field| field.key == key)
            .map(|field| join(field.key));
        here.or_else(|| {
            fields
                .iter()
                .find_map(|field| search(&field.shape, &join(field.key), key))
        })
    }
    search(&ROOT, "", &simplified(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_the_one_that_was_meant() {
        let known = ["remoteurl", "username", "password", "ttl", "exec"];
        for (typed, meant) in [
            ("remoteUrl", Some("remoteurl")),
            ("remote_url", Some("remoteurl")),
            ("remoturl", Some("remoteurl")),
            ("usrename", Some("username")),
            ("tl", Some("ttl")),
            ("passwd", Some("password")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, known), meant, "{typed}");
        }
    }

    #[test]
    fn a_key_in_the_wrong_section_is_sent_home() {
        assert_eq!(home_of("remoteurl").as_deref(), Some("proxy.remoteurl"));
        assert_eq!(
            home_of("rootdirectory").as_deref(),
            Some("storage.filesystem.rootdirectory")
        );
        assert_eq!(home_of("nonsense"), None);
    }

    #[test]
    fn keys_are_lower_case_without_underscores() {
        fn walk(shape: &Shape) {
            match shape {
                Keys(fields) | Driver(fields) => {
                    for field in *fields {
                        assert!(
                            field
                                .key
                                .chars()
                                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
                        );
                        walk(&field.shape);
                    }
                }
                List(inner) | Map(inner) => walk(inner),
                Leaf(_) | Opaque => {}
            }
        }
        walk(&ROOT);
    }
}
