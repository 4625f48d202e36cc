//! What a person reads when a command failed: one line with the cause, and what to do about it.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};

use larder::config::{ConfigError, report};
use larder::{meta, server};

/// `error: what: cause: cause` on one line, then `hint:` lines. A configuration has a line for each thing that is wrong.
pub(super) fn describe(error: &anyhow::Error) -> String {
    if let Some(error) = error.downcast_ref::<ConfigError>() {
        return report::failure(error);
    }
    let mut text = String::new();
    write_line(&mut text, "error", &causes(error));
    if let Some(hint) = hint(error) {
        write_line(&mut text, "hint", hint);
    }
    text
}

/// The error and its causes. Some errors tell their cause themselves; it is not told again.
fn causes(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .fold(String::new(), |told, cause| {
            if told.is_empty() {
                cause
            } else if told.ends_with(&cause) {
                told
            } else {
                format!("{told}: {cause}")
            }
        })
}

/// What helps against a server that cannot start.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    let kind = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind);
    let hint = match (error.downcast_ref::<server::Error>()?, kind) {
        (server::Error::Listen(_), Some(ErrorKind::AddrInUse)) => {
            "another process listens there: end it, or choose another port (`http.addr`, `http.debug.addr`, or `--port` of \
             the demo)"
        }
        (server::Error::Listen(_), Some(ErrorKind::PermissionDenied)) => {
            "ports below 1024 need CAP_NET_BIND_SERVICE; the default is :5000"
        }
        (server::Error::Listen(_), _) => {
            "`http.addr` and `http.debug.addr` must name an address of this machine, or only a port, such as `:5000`"
        }
        (server::Error::Volume { .. }, Some(ErrorKind::PermissionDenied)) => {
            "the user larder runs as must be able to write to `storage.filesystem.rootdirectory` and all below it"
        }
        (server::Error::Volume { .. }, Some(ErrorKind::ReadOnlyFilesystem)) => {
            "mount the volume writable, or choose another `storage.filesystem.rootdirectory`"
        }
        (server::Error::Volume { .. }, _) => {
            "`storage.filesystem.rootdirectory` must be a folder that can be written to"
        }
        (server::Error::Index(meta::Error::InUse(_)), _) => {
            "another larder uses this volume: end it, or give each its own `storage.filesystem.rootdirectory`"
        }
        (server::Error::Index(_), _) => {
            "check the disk; the folder `larder` on the volume may be removed, as the index in it is made anew from the files"
        }
        (server::Error::Tls(_), _) => {
            "`http.tls.certificate` and `http.tls.key` must be PEM files that belong together, `http.tls.clientcas` PEM \
             certificates"
        }
        (server::Error::Login(_), _) => {
            "make `auth.htpasswd.path` with `htpasswd -B`; only bcrypt hashes are taken"
        }
        (server::Error::Upstream { .. }, _) => {
            "check its URL, and that the files of its authorities, certificate and password are PEM and can be read"
        }
        (server::Error::Metrics(_), _) => return None,
    };
    Some(hint)
}

/// Causes from elsewhere may hold line breaks; they stay on their line.
fn write_line(text: &mut String, kind: &str, message: &str) {
    let message = message.replace(['\n', '\r'], " ");
    // Writing to a String does not fail.
    let _ = writeln!(text, "{kind}: {message}");
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::describe;

    #[test]
    fn causes_stand_on_one_line() {
        let error = anyhow!("the disk\nis full").context("cannot write `x`");
        assert_eq!(describe(&error), "error: cannot write `x`: the disk is full\n");
    }

    #[test]
    fn a_cause_is_told_once() {
        let error = anyhow!("no space")
            .context("cannot write `x`: no space")
            .context("cannot start");
        assert_eq!(
            describe(&error),
            "error: cannot start: cannot write `x`: no space\n"
        );
    }
}
