//! From the tree to [`Config`](super::Config): which registries are cached, under which names, and how to log in there.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use url::Url;

use super::{
    hosted,
    reader::{FromScalar, Reader, Section},
    scalar::GoDuration,
    schema,
    sections::filled,
    tree::Scalar,
    types::{ClientCertificate, Credentials, Proxy, UpstreamConfig, UpstreamTls},
    values::{Username, quoted},
};
use crate::secret::Secret;

const DOCKER_HUB: &str = "docker.io";
/// Hosts that all mean Docker Hub.
const DOCKER_HUB_HOSTS: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];
const URL_HINT: &str = "write it like `https://registry-1.docker.io`";
/// Distribution's default.
const DEFAULT_TTL: Duration = Duration::from_hours(168);

/// Reads `proxy` and the upstreams of `larder`; `None` when something there is wrong.
///
/// With both `proxy.remoteurl` and `larder.upstreams`, the former is one more upstream and the default one.
pub(crate) fn proxy(reader: &mut Reader<'_>, root: &Section<'_>) -> Option<Proxy> {
    let (proxy, larder) = (root.section("proxy"), root.section("larder"));
    let single = single(reader, &proxy, &larder);
    let ttl = ttl(reader, &proxy);
    let mut upstreams = Vec::new();
    let mut sections = Vec::new();
    if let Some(single) = single {
        upstreams.push(single);
        sections.push(proxy.clone());
    }
    let has_single = !upstreams.is_empty();
    for section in larder.items("upstreams") {
        if let Some(upstream) = one_of_many(reader, &section) {
            upstreams.push(upstream);
            sections.push(section);
        }
    }
    let is_hosting = hosted::is_configured(root);
    if larder.items("upstreams").is_empty() && !proxy.is_filled("remoteurl") && !is_hosting {
        let hint = "name the registry to cache, such as `proxy: {remoteurl: https://registry-1.docker.io}`; without one \
                    larder only serves what `larder.hosted` names";
        reader.problem(&proxy, "remoteurl", "is missing", Some(hint));
    }
    name_uniquely(reader, &mut upstreams, &sections);
    let default_upstream = default_upstream(reader, &larder, &upstreams, has_single);
    let is_single = (has_single || is_hosting) && larder.items("upstreams").is_empty();
    (is_hosting || !upstreams.is_empty()).then_some(Proxy {
        upstreams,
        default_upstream,
        is_single,
        ttl,
    })
}

fn ttl(reader: &mut Reader<'_>, proxy: &Section<'_>) -> Option<Duration> {
    let default = GoDuration(i64::try_from(DEFAULT_TTL.as_nanos()).unwrap_or(i64::MAX));
    let ttl = reader.get_or(proxy, "ttl", default);
    ttl.to_std().filter(|ttl| !ttl.is_zero())
}

/// The upstream of `proxy`, with its TLS settings from `larder`, because distribution refuses to know them.
fn single(reader: &mut Reader<'_>, proxy: &Section<'_>, larder: &Section<'_>) -> Option<UpstreamConfig> {
    if !proxy.is_filled("remoteurl") {
        let keys = ["passwordfile", "ca", "clientcertificate", "clientkey", "insecure"];
        let without = [
            (proxy, &["username", "password", "exec"][..]),
            (larder, &keys[..]),
        ];
        for (section, keys) in without {
            for key in keys.iter().filter(|key| section.is_filled(key)) {
                reader.warn(section, key, "does nothing without `proxy.remoteurl`");
            }
        }
        return None;
    }
    let remote = reader.get::<RemoteUrl>(proxy, "remoteurl");
    let credentials = credentials(reader, proxy, larder, remote.as_ref());
    let tls = tls(reader, larder, remote.as_ref());
    let remote_url = remote?.url;
    let name = name_of(&remote_url);
    Some(UpstreamConfig {
        name,
        aliases: Vec::new(),
        remote_url,
        credentials,
        tls,
    })
}

fn one_of_many(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<UpstreamConfig> {
    let name = filled(reader.get::<String>(section, "name"));
    if !section.is_filled("remoteurl") {
        reader.problem(section, "remoteurl", "is missing", Some(URL_HINT));
        return None;
    }
    let remote = reader.get::<RemoteUrl>(section, "remoteurl");
    let credentials = credentials(reader, section, section, remote.as_ref());
    let tls = tls(reader, section, remote.as_ref());
    let remote_url = remote?.url;
    let name = match name {
        None => {
            let name = name_of(&remote_url);
            reader.record(section, "name", quoted(&name), super::error::Origin::Default);
            name
        }
        Some(name) => host_name(&name).or_else(|| {
            reader.problem(section, "name", format!("`{name}` is no host"), Some(NAME_HINT));
            None
        })?,
    };
    let mut aliases = Vec::new();
    for alias in reader.list::<String>(section, "aliases") {
        match host_name(&alias) {
            Some(alias) => aliases.push(alias),
            None => reader.problem(
                section,
                "aliases",
                format!("`{alias}` is no host"),
                Some(NAME_HINT),
            ),
        }
    }
    Some(UpstreamConfig {
        name,
        aliases,
        remote_url,
        credentials,
        tls,
    })
}

const NAME_HINT: &str =
    "the host clients write before the image, such as `docker.io` or `registry.example.com:5000`";

/// A host with or without a port, in lower case.
pub(crate) fn host_name(text: &str) -> Option<String> {
    let (host, port) = text
        .split_once(':')
        .map_or((text, None), |(host, port)| (host, Some(port)));
    let is_host = host.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !host.ends_with(['.', '-'])
        && !host.contains("..")
        && host.len() <= 253
        && host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    (is_host && is_port).then(|| text.to_ascii_lowercase())
}

/// The name clients use for the registry at a URL.
fn name_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        None if DOCKER_HUB_HOSTS.contains(&host) => DOCKER_HUB.to_owned(),
        None => host.to_owned(),
        Some(port) => format!("{host}:{port}"),
    }
}

/// A URL and the user and password it may hold.
struct RemoteUrl {
    url: Url,
    user: Option<(String, Secret)>,
}

impl FromScalar for RemoteUrl {
    const EXPECTED: &'static str = "the URL of a registry";
    const HINT: Option<&'static str> = Some(URL_HINT);

    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>> {
        let text = scalar.text.trim();
        if !text.contains("://") {
            let suggestion = host_name(text).map(|host| format!("add the scheme: `https://{host}`"));
            return Err(suggestion);
        }
        let mut url = Url::parse(text).map_err(|error| Some(format!("{error}; {URL_HINT}")))?;
        let is_registry = matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
        if !is_registry {
            return Err(Some("only `http` and `https` are spoken".to_owned()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(Some("remove what follows `?` or `#`".to_owned()));
        }
        let user = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some((
                unescaped(user),
                Secret::new(unescaped(password.unwrap_or_default())),
            )),
        };
        // Both fail only for URLs without a host, and this one has one.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        Ok(Self { url, user })
    }

    fn show(&self) -> String {
        quoted(self.url.as_str().trim_end_matches('/'))
    }

    fn doubt(scalar: &Scalar) -> Option<String> {
        let host = scalar.text.split("://").nth(1)?.split('/').next()?;
        (host == DOCKER_HUB).then(|| {
            "`docker.io` is Docker Hub's web site; the registry is at `https://registry-1.docker.io`"
                .to_owned()
        })
    }
}

/// Undoes `%40` and the like.
fn unescaped(text: &str) -> String {
    // A form is read with the same escapes, apart from `+`, which means itself in a user name.
    let form = format!(
        "u={}",
        text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D")
    );
    url::form_urlencoded::parse(form.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

fn credentials(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    files: &Section<'_>,
    remote: Option<&RemoteUrl>,
) -> Credentials {
    let exec = section.section("exec");
    let username = reader
        .get::<Username>(section, "username")
        .map(|name| name.0)
        .filter(|name| !name.is_empty());
    let password = reader
        .get::<Secret>(section, "password")
        .filter(|password| !password.is_empty());
    let path = reader
        .get::<PathBuf>(files, "passwordfile")
        .filter(|path| !path.as_os_str().is_empty());
    let command = filled(reader.get::<String>(&exec, "command"));
    let lifetime = reader.get::<Duration>(&exec, "lifetime");
    if let Some(command) = command {
        if path.is_some() {
            reader.problem(
                files,
                "passwordfile",
                "cannot stand beside `exec`",
                Some("keep one of them"),
            );
        }
        return Credentials::Helper { command, lifetime };
    }
    match (username, password, path) {
        (_, Some(_), Some(_)) => {
            reader.problem(
                files,
                "passwordfile",
                "cannot stand beside `password`",
                Some("keep one of them"),
            );
            Credentials::Anonymous
        }
        (Some(username), None, Some(path)) => Credentials::PasswordFile { username, path },
        (None, None, Some(_)) => {
            reader.problem(files, "passwordfile", "has no `username` beside it", None);
            Credentials::Anonymous
        }
        (Some(username), Some(password), None) => Credentials::Password { username, password },
        (None, None, None) => remote.and_then(|remote| remote.user.clone()).map_or(
            Credentials::Anonymous,
            |(username, password)| {
                reader.warn(
                    section,
                    "remoteurl",
                    "holds a password, which may end up in logs; use `username` and `password`",
                );
                Credentials::Password { username, password }
            },
        ),
        (Some(_), None, None) => half(reader, section, "username", "password"),
        (None, Some(_), None) => half(reader, section, "password", "username"),
    }
}

/// As in distribution, one without the other is as good as none; but it is said.
fn half(reader: &mut Reader<'_>, section: &Section<'_>, present: &str, missing: &str) -> Credentials {
    reader.warn(
        section,
        present,
        format!("has no `{missing}` beside it, so upstream is asked without a login"),
    );
    Credentials::Anonymous
}

fn tls(reader: &mut Reader<'_>, section: &Section<'_>, remote: Option<&RemoteUrl>) -> UpstreamTls {
    let path =
        |reader: &mut Reader<'_>, key: &str| filled(reader.get::<String>(section, key)).map(PathBuf::from);
    let ca = path(reader, "ca");
    let certificate = path(reader, "clientcertificate");
    let key = path(reader, "clientkey");
    let is_insecure = reader.get_or(section, "insecure", false);
    if is_insecure && remote.is_some_and(|remote| remote.url.scheme() == "https") {
        reader.warn(section, "insecure", "the certificate of upstream is not checked");
    }
    let client_certificate = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
        (Some(_), None) => {
            reader.problem(
                section,
                "clientkey",
                "is missing beside `clientcertificate`",
                None,
            );
            None
        }
        (None, Some(_)) => {
            reader.problem(
                section,
                "clientcertificate",
                "is missing beside `clientkey`",
                None,
            );
            None
        }
        (None, None) => None,
    };
    UpstreamTls {
        ca,
        client_certificate,
        is_insecure,
    }
}

/// Gives Docker Hub its other names and refuses a name that two upstreams have.
fn name_uniquely(reader: &mut Reader<'_>, upstreams: &mut [UpstreamConfig], sections: &[Section<'_>]) {
    let mut owners: HashMap<String, usize> = HashMap::new();
    for (index, (upstream, section)) in upstreams.iter().zip(sections).enumerate() {
        for name in std::iter::once(&upstream.name).chain(&upstream.aliases) {
            if owners
                .insert(name.clone(), index)
                .is_some_and(|owner| owner != index)
            {
                let hint = Some("each name may stand at one upstream only");
                reader.problem(
                    section,
                    "name",
                    format!("`{name}` is the name of another upstream too"),
                    hint,
                );
            }
        }
    }
    for upstream in upstreams.iter_mut().filter(|upstream| upstream.is_docker_hub()) {
        for host in DOCKER_HUB_HOSTS {
            if !owners.contains_key(host) {
                upstream.aliases.push(host.to_owned());
            }
        }
    }
}

fn default_upstream(
    reader: &mut Reader<'_>,
    larder: &Section<'_>,
    upstreams: &[UpstreamConfig],
    has_single: bool,
) -> Option<usize> {
    let Some(name) = filled(reader.get::<String>(larder, "defaultupstream")) else {
        return has_single.then_some(0);
    };
    let index = upstreams.iter().position(|upstream| upstream.answers_to(&name));
    if index.is_none() {
        let names = upstreams.iter().map(|upstream| upstream.name.as_str());
        let hint = schema::nearest(&name, names).map(|near| format!("did you mean `{near}`?"));
        reader.problem(
            larder,
            "defaultupstream",
            format!("`{name}` is no upstream"),
            hint.as_deref(),
        );
    }
    index
}
