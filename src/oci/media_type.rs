//! Media types that larder has to know by name; every other type passes through as it is.

/// OCI image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// OCI image index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Docker image manifest, schema 2.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker manifest list.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Docker image manifest, schema 1, signed.
pub const DOCKER_SCHEMA1: &str = "application/vnd.docker.distribution.manifest.v1+prettyjws";
/// Bytes of no further known type: every blob.
pub const OCTET_STREAM: &str = "application/octet-stream";

/// What larder asks upstream for, as one `Accept` value: every manifest type by name, then anything.
pub const ACCEPT_MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, */*";

/// Removes parameters and white space: `a/b; charset=utf-8` becomes `a/b` (distribution-spec: no parameters on manifests).
pub fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Whether a `Content-Type` says nothing about a manifest, so that its body has to be asked.
pub fn is_generic(content_type: &str) -> bool {
    matches!(
        essence(content_type),
        "" | "text/plain" | "application/json" | "application/octet-stream" | "binary/octet-stream"
    )
}

/// Whether a `Content-Type` belongs to a page for people, which no registry object is.
pub fn is_page(content_type: &str) -> bool {
    matches!(essence(content_type), "text/html" | "application/xhtml+xml")
}

#[cfg(test)]
mod tests {
    use oci_spec::image::MediaType;

    use super::*;

    #[test]
    fn the_types_are_those_of_the_specification() {
        assert_eq!(OCI_MANIFEST, MediaType::ImageManifest.to_string());
        assert_eq!(OCI_INDEX, MediaType::ImageIndex.to_string());
    }

    #[test]
    fn parameters_are_cut_and_generic_types_known() {
        assert_eq!(essence("application/json; charset=utf-8"), "application/json");
        assert!(is_generic("text/plain;x=y") && is_generic("") && !is_generic(OCI_INDEX));
        assert!(is_page("text/html; charset=utf-8"));
    }
}
