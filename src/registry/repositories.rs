//! Which repository a client means: the upstream that has it, its name there, and its directory on the volume.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Error;
use super::hosted::{HostedRepository, Hosting};
use crate::config::Hosted;
use crate::oci::Name;
use crate::store::layout::Directory;
use crate::upstream::Upstream;

/// For how long an upstream that failed is not waited for where something is held.
const UNWELL_FOR: Duration = Duration::from_secs(5);

/// A configured upstream and how clients call it.
#[derive(Debug)]
pub struct Entry {
    /// The client side of the other registry.
    pub upstream: Arc<Upstream>,
    /// Its name: the host that image references carry.
    pub name: String,
    /// Other hosts that mean the same.
    pub aliases: Vec<String>,
    /// Docker Hub keeps its one-word repositories below `library/`.
    pub is_docker_hub: bool,
    unwell_until: Mutex<Option<Instant>>,
}

impl Entry {
    /// Names an upstream.
    pub fn new(upstream: Arc<Upstream>, name: String, aliases: Vec<String>, is_docker_hub: bool) -> Self {
        Self {
            upstream,
            name,
            aliases,
            is_docker_hub,
            unwell_until: Mutex::new(None),
        }
    }

    fn answers_to(&self, host: &str) -> bool {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Notes how the last question ended.
    pub(super) fn note(&self, is_well: bool) {
        *self.unwell_until.lock() = (!is_well).then(|| Instant::now() + UNWELL_FOR);
    }

    pub(super) fn is_unwell(&self) -> bool {
        self.unwell_until
            .lock()
            .is_some_and(|until| Instant::now() < until)
    }
}

/// All configured upstreams.
#[derive(Debug)]
pub struct Repositories {
    entries: Vec<Arc<Entry>>,
    default: Option<usize>,
    /// One upstream, as in distribution: `ns` says nothing, and directories carry no host.
    is_single: bool,
    hosting: Option<Arc<Hosting>>,
}

/// A repository of an upstream, as a client addressed it. Cheap to clone.
#[derive(Clone)]
pub struct Repository {
    name: Name,
    remote_name: Name,
    directory: Directory,
    entry: Arc<Entry>,
}

impl Repositories {
    /// Takes the configured upstreams; `default` is the index of the one for clients that say nothing.
    pub fn new(entries: Vec<Entry>, default: Option<usize>, is_single: bool) -> Self {
        Self {
            entries: entries.into_iter().map(Arc::new).collect(),
            default,
            is_single,
            hosting: None,
        }
    }

    /// Has some repositories hosted here. Where there are several upstreams, their directories are theirs.
    #[must_use]
    pub fn with_hosted(mut self, hosted: Option<Hosted>) -> Self {
        let hosts = self.entries.iter().filter(|_| !self.is_single);
        let reserved = hosts.map(|entry| entry.name.replace(':', "_")).collect();
        self.hosting = hosted.map(|hosted| Arc::new(Hosting::new(hosted, reserved)));
        self
    }

    pub(super) fn hosting(&self) -> Option<&Arc<Hosting>> {
        self.hosting.as_ref()
    }

    /// Finds the hosted repository that a request means; `None` when it means one that is pulled through.
    ///
    /// A client that names one of several upstreams means that. With a single one its repositories lie among the
    /// hosted ones, so there the name alone decides, also the name that Docker Hub makes of a short one.
    ///
    /// # Errors
    /// [`Error::NameInvalid`] for a hosted path that is no name.
    pub fn locate_hosted(
        &self,
        path: &str,
        namespace: Option<&str>,
    ) -> Result<Option<HostedRepository>, Error> {
        let Some(hosting) = &self.hosting else {
            return Ok(None);
        };
        let is_upstream = |host: &str| {
            let host = without_default_port(host);
            self.entries.iter().any(|entry| entry.answers_to(host))
        };
        let prefix = path.split_once('/').map(|(host, _)| host);
        if !self.is_single && (namespace.is_some_and(is_upstream) || prefix.is_some_and(is_upstream)) {
            return Ok(None);
        }
        if hosting.owns(path) {
            return HostedRepository::parse(path).map(Some);
        }
        if !self.is_single {
            return Ok(None);
        }
        let shadowed = self.locate(path, namespace).ok();
        let directory = shadowed
            .filter(|repository| hosting.owns(repository.directory().as_str()))
            .map(|repository| HostedRepository::parse(repository.directory().as_str()));
        directory.transpose()
    }

    /// Finds the repository that a request means: by `ns`, by a host as first path component, or by default.
    ///
    /// # Errors
    /// [`Error::NameInvalid`] for a path that is no name, [`Error::NameUnknown`] for an upstream that is not configured.
    pub fn locate(&self, path: &str, namespace: Option<&str>) -> Result<Repository, Error> {
        let prefixed = path.split_once('/').and_then(|(host, rest)| {
            let entry = self.entries.iter().find(|entry| entry.answers_to(host))?;
            Some((entry, rest))
        });
        let (entry, path) = match (prefixed, namespace.filter(|_| !self.is_single)) {
            (Some((entry, rest)), None) => (entry, rest),
            (Some((entry, rest)), Some(host)) if entry.answers_to(without_default_port(host)) => {
                (entry, rest)
            }
            (_, Some(host)) => {
                let host = without_default_port(host);
                let entry = self.entries.iter().find(|entry| entry.answers_to(host));
                (
                    entry.ok_or_else(|| Error::NameUnknown(format!("{host}/{path}")))?,
                    path,
                )
            }
            (None, None) => {
                let entry = self.default.and_then(|index| self.entries.get(index));
                (entry.ok_or_else(|| Error::NameUnknown(path.to_owned()))?, path)
            }
        };
        let name = Name::parse(path).map_err(|e| Error::NameInvalid(e.to_string()))?;
        let remote_name = if entry.is_docker_hub && !path.contains('/') {
            Name::parse(&format!("library/{path}")).map_err(|e| Error::NameInvalid(e.to_string()))?
        } else {
            name.clone()
        };
        let host = (!self.is_single).then_some(entry.name.as_str());
        let directory = Directory::new(host, &remote_name);
        Ok(Repository {
            name,
            remote_name,
            directory,
            entry: Arc::clone(entry),
        })
    }

    /// Whether nothing that any upstream gives needs a login: then content found here answers for every repository.
    pub(super) fn are_public(&self) -> bool {
        // What was pushed here is nothing that an upstream gave.
        self.hosting.is_none() && self.entries.iter().all(|entry| entry.upstream.is_public())
    }
}

/// `host:443` and `host:80` are written without their port.
fn without_default_port(host: &str) -> &str {
    host.strip_suffix(":443")
        .or_else(|| host.strip_suffix(":80"))
        .unwrap_or(host)
}

impl Repository {
    /// The name as the client addressed it, without the upstream's host.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The upstream's host.
    pub fn upstream_host(&self) -> &str {
        &self.entry.name
    }

    pub(super) fn remote_name(&self) -> &Name {
        &self.remote_name
    }

    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub(super) fn upstream(&self) -> &Arc<Upstream> {
        &self.entry.upstream
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.entry.name, self.remote_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::upstream::{Observer, Settings};

    struct Deaf;

    impl Observer for Deaf {
        fn response(&self, _: &str, _: &'static str, _: &str, _: Duration) {}
    }

    fn entry(name: &str, aliases: &[&str]) -> Entry {
        let settings = Settings {
            host: name.to_owned(),
            remote_url: url::Url::parse(&format!("https://{name}")).unwrap(),
            credentials: crate::upstream::Credentials::None,
            connect_timeout: Duration::from_secs(1),
            header_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(1),
            realms: Vec::new(),
            extra_ca: None,
            client_certificate: None,
            insecure: false,
            send_ns: None,
        };
        let upstream = Upstream::new(settings, Arc::new(Deaf), Clock::default()).unwrap();
        let aliases = aliases.iter().map(|a| (*a).to_owned()).collect();
        Entry::new(Arc::new(upstream), name.to_owned(), aliases, name == "docker.io")
    }

    fn many() -> Repositories {
        let hub = entry("docker.io", &["index.docker.io", "registry-1.docker.io"]);
        Repositories::new(vec![hub, entry("quay.io", &[])], Some(0), false)
    }

    #[test]
    fn six_spellings_mean_one_directory() {
        let repositories = many();
        for (path, ns) in [
            ("alpine", None),
            ("library/alpine", Some("docker.io")),
            ("alpine", Some("DOCKER.IO:443")),
            ("docker.io/library/alpine", None),
            ("index.docker.io/alpine", Some("registry-1.docker.io")),
            ("library/alpine", None),
        ] {
            let found = repositories.locate(path, ns).unwrap();
            assert_eq!(
                found.directory().as_str(),
                "docker.io/library/alpine",
                "{path} {ns:?}"
            );
        }
        let quay = repositories.locate("a/b", Some("quay.io")).unwrap();
        assert_eq!(
            (quay.upstream_host(), quay.directory().as_str()),
            ("quay.io", "quay.io/a/b")
        );
    }

    #[test]
    fn hosted_and_pulled_through_repositories_do_not_shadow_each_other() {
        let hosted = |names: &[&str]| {
            let patterns = names.iter().map(|n| crate::config::Pattern::parse(n).unwrap());
            Some(Hosted {
                repositories: patterns.collect(),
                is_delete_enabled: false,
                upload_expiry: Duration::from_secs(1),
                quota_bytes: None,
            })
        };
        let found = |all: &Repositories, path: &str, ns: Option<&str>| {
            let found = all.locate_hosted(path, ns).unwrap();
            found.map(|repository| repository.name().to_string())
        };
        let all = many().with_hosted(hosted(&["*"]));
        assert_eq!(found(&all, "team/app", None).as_deref(), Some("team/app"));
        assert_eq!(
            found(&all, "team/app", Some("larder.local")).as_deref(),
            Some("team/app")
        );
        assert_eq!(found(&all, "docker.io/library/alpine", None), None);
        assert_eq!(found(&all, "library/alpine", Some("docker.io")), None);
        assert!(matches!(
            all.locate_hosted("Team", None),
            Err(Error::NameInvalid(_))
        ));
        let owned = all.hosting().unwrap();
        assert!(owned.owns("team/app") && !owned.owns("docker.io/library/alpine"));
        let single = Repositories::new(vec![entry("docker.io", &[])], Some(0), true)
            .with_hosted(hosted(&["library/own", "team/*"]));
        assert_eq!(found(&single, "own", None).as_deref(), Some("library/own"));
        assert_eq!(
            found(&single, "docker.io/team/a", None).as_deref(),
            Some("team/a")
        );
        assert_eq!(found(&single, "library/alpine", None), None);
    }

    #[test]
    fn an_unknown_namespace_is_not_known_and_a_bad_name_is_invalid() {
        let repositories = many();
        assert!(matches!(
            repositories.locate("a/b", Some("evil.example")),
            Err(Error::NameUnknown(_))
        ));
        assert!(matches!(
            repositories.locate("A/b", None),
            Err(Error::NameInvalid(_))
        ));
        assert!(matches!(
            repositories.locate("../b", None),
            Err(Error::NameInvalid(_))
        ));
    }

    #[test]
    fn a_single_upstream_takes_any_namespace_and_has_no_host_on_the_volume() {
        let single = Repositories::new(vec![entry("mirror.example", &[])], Some(0), true);
        let found = single.locate("library/alpine", Some("docker.io")).unwrap();
        assert_eq!(found.directory().as_str(), "library/alpine");
        let found = single.locate("mirror.example/library/alpine", None).unwrap();
        assert_eq!(found.directory().as_str(), "library/alpine");
    }
}
