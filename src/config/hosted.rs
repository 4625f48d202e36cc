//! From the tree to [`Config`](super::Config): the section `larder.hosted`, which says which repositories larder owns.

use std::time::Duration;

use super::{
    listener::positive,
    pattern::Pattern,
    reader::{Reader, Section},
    types::Hosted,
    values::Bytes,
};

/// How long an upload may rest where nothing is said.
const DEFAULT_UPLOAD_EXPIRY: Duration = Duration::from_hours(24);

/// Reads the section; `None` when no repository is hosted.
pub(crate) fn hosted(reader: &mut Reader<'_>, larder: &Section<'_>) -> Option<Hosted> {
    let hosted = larder.section("hosted");
    if !hosted.is_present() {
        return None;
    }
    let mut repositories = Vec::new();
    for text in reader.list::<String>(&hosted, "repositories") {
        if let Some(pattern) = Pattern::parse(&text) {
            repositories.push(pattern);
        } else {
            let hint = Some("write it like `*`, `team/*` or `team/app`");
            reader.problem(
                &hosted,
                "repositories",
                format!("`{text}` cannot match a repository"),
                hint,
            );
        }
    }
    if repositories.is_empty() {
        reader.warn(&hosted, "repositories", "names none, so nothing is hosted");
        return None;
    }
    Some(Hosted {
        repositories,
        is_delete_enabled: reader.get_or(&hosted, "delete", false),
        upload_expiry: positive(reader, &hosted, "uploadexpiry", DEFAULT_UPLOAD_EXPIRY),
        quota_bytes: quota(reader, &hosted),
    })
}

/// 0 is no quota.
fn quota(reader: &mut Reader<'_>, hosted: &Section<'_>) -> Option<u64> {
    let bytes = reader.get_or(hosted, "quota", Bytes(0)).0;
    (bytes > 0).then_some(bytes)
}

/// Whether something is hosted, so that there need be no upstream.
pub(crate) fn is_configured(root: &Section<'_>) -> bool {
    !root
        .section("larder")
        .section("hosted")
        .items("repositories")
        .is_empty()
}
