//! The user and password larder has for a registry, from wherever they come, as they are at this moment.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use futures::FutureExt as _;
use http::HeaderValue;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use super::error::{Error, Phase};
use super::lease::{Lease, Leases};
use super::settings::Credentials;
use crate::secret::Secret;

/// More than any credential helper has to say.
const MAX_HELPER_BYTES: u64 = 64 * 1024;
/// A helper may have to ask a cloud service.
const HELPER_TIMEOUT: Duration = Duration::from_secs(10);

/// A user and a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) username: String,
    pub(super) password: Secret,
}

impl Login {
    fn new(username: String, password: Secret) -> Option<Self> {
        (!username.is_empty() && !password.is_empty()).then_some(Self { username, password })
    }

    /// The `Authorization` value of the Basic scheme (RFC 7617).
    pub(super) fn basic(&self) -> Result<HeaderValue, Error> {
        let pair = format!("{}:{}", self.username, self.password.expose());
        let text = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
        let mut value = HeaderValue::try_from(text)
            .map_err(|_| Error::denied("the configured user or password is not usable"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Where logins come from.
pub(super) struct Source {
    credentials: Credentials,
    helped: Leases<String, Option<Login>>,
}

impl Source {
    pub(super) fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            helped: Leases::new(),
        }
    }

    /// Whether there is none.
    pub(super) fn is_none(&self) -> bool {
        self.credentials.is_none()
    }

    /// The login for a server (`host` or `host:port`), none when there is none for it.
    ///
    /// One that is older than `refused_at` was refused and is obtained anew where it can change.
    pub(super) async fn login(
        &self,
        server: &str,
        refused_at: Option<Instant>,
    ) -> Result<Option<Login>, Error> {
        if self.is_none() {
            return Ok(None);
        }
        match &self.credentials {
            Credentials::None => Ok(None),
            Credentials::Static { username, password } => Ok(Login::new(username.clone(), password.clone())),
            // It is read each time: a file of a few bytes costs no more than asking whether it has changed.
            Credentials::PasswordFile { username, path } => {
                Ok(Login::new(username.clone(), read(path).await?))
            }
            Credentials::Exec { command, lifetime } => {
                let server = server.to_owned();
                if let Some(refused_at) = refused_at {
                    self.helped.forget(&server, refused_at);
                }
                let lease = self.helped.get(&server, || {
                    help(command.clone(), server.clone(), *lifetime).boxed()
                });
                lease.await.map(|lease| lease.value)
            }
        }
    }
}

async fn read(path: &Path) -> Result<Secret, Error> {
    let text = tokio::fs::read_to_string(path).await.map_err(|error| {
        Error::denied(format!(
            "cannot read the password file `{}`: {error}",
            path.display()
        ))
    })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Secret::new(text.strip_suffix('\r').unwrap_or(text)))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    #[serde(default)]
    username: String,
    #[serde(default)]
    secret: String,
}

async fn help(
    command: String,
    server: String,
    lifetime: Option<Duration>,
) -> Result<Lease<Option<Login>>, Error> {
    let answer = timeout(HELPER_TIMEOUT, run(&command, &server))
        .await
        .map_err(|_| Error::TimedOut {
            host: command.clone(),
            phase: Phase::Helper,
        })?;
    answer.map(|login| Lease::new(login, lifetime)).map_err(|reason| {
        tracing::warn!(%command, %server, %reason, "the credential helper failed");
        Error::denied(format!("the credential helper `{command}` failed: {reason}"))
    })
}

/// One run by Docker's credential helper protocol; a server it does not know is no failure.
async fn run(command: &str, server: &str) -> Result<Option<Login>, String> {
    let mut child = tokio::process::Command::new(command)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A helper that knows its one answer may not read; what it says counts.
        let _ = stdin.write_all(server.as_bytes()).await;
    }
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout
            .take(MAX_HELPER_BYTES)
            .read_to_end(&mut output)
            .await
            .map_err(|error| error.to_string())?;
    }
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if !status.success() {
        let said = String::from_utf8_lossy(&output);
        let said = said.trim();
        let is_unknown = said.starts_with("credentials not found");
        let first_line = said
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(200)
            .collect::<String>();
        return if is_unknown {
            Ok(None)
        } else {
            Err(format!("{status}: {first_line}"))
        };
    }
    let helped: Helped = serde_json::from_slice(&output).map_err(|_| "its answer is not JSON".to_owned())?;
    Ok(Login::new(helped.username, Secret::new(helped.secret)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn helper(folder: &Path, script: &str) -> String {
        let path = folder.join("docker-credential-test");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    async fn login_of(command: String, lifetime: Option<Duration>, times: usize) -> Vec<Option<Login>> {
        let source = Source::new(Credentials::Exec { command, lifetime });
        let mut logins = Vec::new();
        for _ in 0..times {
            logins.push(source.login("r.example.com:5000", None).await.unwrap());
        }
        logins
    }

    #[tokio::test]
    async fn a_helper_is_asked_for_the_server_and_its_answer_holds_for_its_lifetime() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let script = format!(
            r#"echo x >> {0}; printf '{{"ServerURL":"s","Username":"%s","Secret":"%s"}}' "$1-$(cat)" "$(wc -l < {0})""#,
            count.display()
        );
        let command = helper(folder.path(), &script);
        let login = |n: &str| Login::new("get-r.example.com:5000".to_owned(), Secret::new(n));
        assert_eq!(login_of(command.clone(), None, 2).await, [login("1"), login("1")]);
        assert_eq!(
            login_of(command.clone(), Some(Duration::ZERO), 2).await,
            [login("2"), login("3")]
        );
        let source = Source::new(Credentials::Exec {
            command,
            lifetime: None,
        });
        assert_eq!(
            source.login("r.example.com:5000", None).await.unwrap(),
            login("4")
        );
        assert_eq!(
            source
                .login("r.example.com:5000", Some(Instant::now()))
                .await
                .unwrap(),
            login("5")
        );
    }

    #[tokio::test]
    async fn a_helper_that_fails_is_an_error_and_one_that_knows_nothing_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let unknown = helper(
            folder.path(),
            "echo 'credentials not found in native keychain'; exit 1",
        );
        assert_eq!(login_of(unknown, None, 1).await, [None]);
        for script in ["echo out of order; exit 3", "echo not json"] {
            let source = Source::new(Credentials::Exec {
                command: helper(folder.path(), script),
                lifetime: None,
            });
            assert!(
                matches!(source.login("s", None).await, Err(Error::Denied { .. })),
                "{script}"
            );
        }
        let source = Source::new(Credentials::Exec {
            command: "/nonexistent/helper".to_owned(),
            lifetime: None,
        });
        assert!(matches!(source.login("s", None).await, Err(Error::Denied { .. })));
    }

    #[tokio::test]
    async fn a_password_file_is_read_as_it_is_now() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source = Source::new(Credentials::PasswordFile {
            username: "u".to_owned(),
            path: file.path().to_owned(),
        });
        for (content, password) in [("a b \n", "a b "), ("two\r\n", "two"), ("three\n\n", "three\n")] {
            std::fs::write(file.path(), content).unwrap();
            assert_eq!(
                source.login("s", None).await.unwrap().unwrap().password.expose(),
                password
            );
        }
        std::fs::write(file.path(), "\n").unwrap();
        assert_eq!(source.login("s", None).await.unwrap(), None);
    }

    #[test]
    fn basic_credentials_are_encoded_and_not_shown() {
        let login = Login::new("Aladdin".to_owned(), Secret::new("open sesame")).unwrap();
        let value = login.basic().unwrap();
        assert_eq!(value.to_str().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(format!("{value:?}"), "Sensitive");
    }
}
