//! `scheduler-state.json`, distribution's table of expiries: read when a volume of its is adopted, written on a clean
//! stop so that distribution can take the volume back.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{Collector, Error};
use crate::oci::Digest;

const FILE: &str = "scheduler-state.json";

/// Links written in one go.
const BATCH: usize = 256;

/// When distribution last fetched what it knows, derived from its expiries.
#[derive(Debug, Default)]
pub(super) struct Expiries(HashMap<String, u64>);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    key: String,
    expiry_data: String,
    #[serde(rename = "EntryType")]
    kind: u8,
}

/// An entry, or whatever else stands in its place.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lenient {
    Entry(Entry),
    Other(serde::de::IgnoredAny),
}

impl Expiries {
    /// Reads the table in the volume's folder. Without one, or without a TTL to count back from, nothing is known. A
    /// damaged table is told of and means the same: the files' times are used then.
    pub(super) fn load(root: &Path, ttl_ms: Option<u64>) -> Self {
        let Some(ttl_ms) = ttl_ms else {
            return Self::default();
        };
        let bytes = match fs::read(root.join(FILE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            Err(error) => {
                tracing::warn!(%error, "cannot read `{FILE}`, the ages of the files are used");
                return Self::default();
            }
        };
        match serde_json::from_slice::<HashMap<String, Lenient>>(&bytes) {
            Ok(table) => Self(
                table
                    .into_iter()
                    .filter_map(|(key, entry)| match entry {
                        Lenient::Entry(entry) => {
                            Some((key, parse_time(&entry.expiry_data)?.saturating_sub(ttl_ms)))
                        }
                        Lenient::Other(_) => None,
                    })
                    .collect(),
            ),
            Err(error) => {
                tracing::warn!(%error, "`{FILE}` is damaged, the ages of the files are used");
                Self::default()
            }
        }
    }

    /// When `digest` was last fetched through `repository`, in milliseconds since the Unix epoch.
    pub(super) fn last_use_ms(&self, repository: &str, digest: &Digest) -> Option<u64> {
        self.0.get(&format!("{repository}@{digest}")).copied()
    }
}

/// RFC 3339 with `Z` or a numeric offset, as Go writes it, in milliseconds since the Unix epoch.
fn parse_time(text: &str) -> Option<u64> {
    let (local, offset_seconds) = if let Some(local) = text.strip_suffix('Z') {
        (local, 0)
    } else {
        let (local, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
        let (hours, minutes) = offset.get(1..)?.split_once(':')?;
        let seconds = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
        match offset.get(..1)? {
            "+" => (local, seconds),
            "-" => (local, -seconds),
            _ => return None,
        }
    };
    let at = humantime::parse_rfc3339(&format!("{local}Z")).ok()?;
    let ms = i64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()?;
    u64::try_from(ms - offset_seconds * 1000).ok()
}

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Writes the table for distribution, or removes it where nothing expires. Blocking; for a clean stop.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; the table that was there before stays then.
    pub fn write_state_file(&self) -> Result<(), Error> {
        let root = self.store().root();
        let path = root.join(FILE);
        let failed = |source| {
            crate::store::Error::io(crate::store::Operation::Write, path.display().to_string(), source)
        };
        let Some(ttl_ms) = self.settings.ttl_ms() else {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error).into()),
                _ => Ok(()),
            };
        };
        // Beside our own files until it is whole: a half-written table keeps distribution from starting.
        let folder = root.join(crate::store::layout::OWN);
        let temporary = folder.join(FILE);
        fs::create_dir_all(&folder).map_err(failed)?;
        let mut out = BufWriter::new(fs::File::create(&temporary).map_err(failed)?);
        self.write_entries(&mut out, ttl_ms, &failed)?;
        let file = out.into_inner().map_err(|e| failed(e.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)?;
        Ok(())
    }

    fn write_entries(
        &self,
        out: &mut impl Write,
        ttl_ms: u64,
        failed: &impl Fn(io::Error) -> crate::store::Error,
    ) -> Result<(), Error> {
        let mut separator = "{";
        let mut repository = None;
        while let Some(name) = self.index().next_repository(repository.as_deref())? {
            let mut after = None;
            loop {
                let batch = self.index().links(&name, after.as_ref(), BATCH)?;
                for link in &batch {
                    let key = format!("{name}@{}", link.digest);
                    let expires_ms = self.settings.order.time_of(&link.record).saturating_add(ttl_ms);
                    let entry = Entry {
                        expiry_data: format_time(expires_ms),
                        kind: u8::from(link.record.is_manifest),
                        key: key.clone(),
                    };
                    let value = serde_json::to_string(&entry).map_err(|e| failed(e.into()))?;
                    let key = serde_json::to_string(&key).map_err(|e| failed(e.into()))?;
                    write!(out, "{separator}{key}:{value}").map_err(failed)?;
                    separator = ",";
                }
                after = batch.last().map(|link| link.digest.clone());
                if batch.len() < BATCH {
                    break;
                }
            }
            repository = Some(name);
        }
        let end = if separator == "{" { "{}" } else { "}" };
        out.write_all(end.as_bytes())
            .and_then(|()| out.flush())
            .map_err(failed)?;
        Ok(())
    }
}

/// The last moment that RFC 3339 can tell, in milliseconds: the end of the year 9999.
const LAST_MS: u64 = 253_402_300_799_000;

fn format_time(at_ms: u64) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(at_ms.min(LAST_MS));
    humantime::format_rfc3339_nanos(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_go_are_read_in_any_zone() {
        let noon = parse_time("2024-05-01T12:00:00Z");
        assert_eq!(noon, Some(1_714_564_800_000));
        assert_eq!(parse_time("2024-05-01T14:00:00.000000001+02:00"), noon);
        assert_eq!(parse_time("2024-05-01T07:00:00.5-05:00"), noon.map(|t| t + 500));
        for bad in ["", "x", "2024-05-01", "+02:00", "é+02:00", "2024-05-01T12:00:00"] {
            assert_eq!(parse_time(bad), None, "{bad}");
        }
        assert_eq!(format_time(1_714_564_800_000), "2024-05-01T12:00:00.000000000Z");
        assert!(format_time(u64::MAX).starts_with("9999-12-31"));
    }

    #[test]
    fn damaged_and_foreign_tables_are_tolerated() {
        let folder = tempfile::tempdir().unwrap();
        let digest = Digest::of(crate::oci::Algorithm::Sha256, b"x");
        let good = format!(
            r#"{{"a@{digest}":{{"Key":"a@{digest}","ExpiryData":"2024-05-01T12:00:00Z","EntryType":0}},"b":7,"c":{{}}}}"#
        );
        for (text, expected) in [
            ("", None),
            ("{", None),
            ("[]", None),
            ("\0\u{1}", None),
            (good.as_str(), Some(1_714_564_790_000)),
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            let expiries = Expiries::load(folder.path(), Some(10_000));
            assert_eq!(expiries.last_use_ms("a", &digest), expected, "{text}");
        }
    }
}
