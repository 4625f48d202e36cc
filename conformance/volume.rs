//! The volume: distribution's layout to the byte, served as found, never trusted, never in the way.

use std::path::Path;

use futures::future::join_all;

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Cut, Document, Fault, Image, OCI_INDEX, TestUpstream, index_of, on};

/// Writes a file and the folders above it.
fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().expect("a path below the root")).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Writes an image as distribution would have.
pub(crate) fn write_like_distribution(root: &Path, repository: &str, tag: &str, image: &Image) {
    let base = root.join("docker/registry/v2");
    let repository = base.join("repositories").join(repository);
    let data = |digest: &str| {
        let hex = digest.trim_start_matches("sha256:");
        base.join("blobs/sha256").join(&hex[..2]).join(hex).join("data")
    };
    let link = |folder: &str, digest: &str| {
        let hex = digest.trim_start_matches("sha256:");
        write(
            &repository.join(folder).join("sha256").join(hex).join("link"),
            digest,
        );
    };
    for blob in image.blobs() {
        write(&data(&blob.digest), blob.bytes());
        link("_layers", &blob.digest);
    }
    write(&data(&image.manifest.digest), &image.manifest.bytes);
    link("_manifests/revisions", &image.manifest.digest);
    link(&format!("_manifests/tags/{tag}/index"), &image.manifest.digest);
    write(
        &repository.join("_manifests/tags").join(tag).join("current/link"),
        &image.manifest.digest,
    );
}

async fn pull(larder: &Larder, repository: &str, tag: &str, image: &Image) {
    larder
        .get(&manifest_path(repository, tag))
        .await
        .is_whole(&image.manifest.bytes);
    for blob in image.blobs() {
        larder
            .get(&blob_path(repository, &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
}

#[tokio::test]
async fn what_is_written_is_distributions_layout_and_nothing_else() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("library/app", "1", &image);
    let larder = Larder::start(&upstream).await;
    pull(&larder, "library/app", "1", &image).await;
    larder.until_idle().await;
    let expected = tempfile::tempdir().unwrap();
    write_like_distribution(expected.path(), "library/app", "1", &image);
    let by_hand = Builder::new(&upstream.url()).root(expected.path()).start().await;
    let of_distribution = |larder: &Larder| {
        let mut files = larder.files();
        files.retain(|path, _| path.starts_with("docker/"));
        files
    };
    assert_eq!(of_distribution(&larder), of_distribution(&by_hand));
    let links = larder.files().into_keys().filter(|path| path.ends_with("/link"));
    for link in links {
        let text = std::fs::read_to_string(larder.root().join(&link)).unwrap();
        assert!(
            text.starts_with("sha256:") && text.len() == 71,
            "{link}: {text:?}"
        );
    }
    let strangers: Vec<String> = larder
        .files()
        .into_keys()
        .filter(|path| !path.starts_with("docker/") && !path.starts_with("larder/"))
        .collect();
    assert_eq!(strangers, Vec::<String>::new());
}

#[tokio::test]
async fn a_volume_of_distribution_is_served_at_once_with_upstream_down() {
    let upstream = TestUpstream::start().await;
    upstream.refuse().await;
    let volume = tempfile::tempdir().unwrap();
    let images = [
        Image::small(2),
        Image::docker("old", vec![Blob::generated(5, 50_000)]),
    ];
    for (number, image) in images.iter().enumerate() {
        write_like_distribution(volume.path(), &format!("library/app{number}"), "latest", image);
    }
    let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
    for (number, image) in images.iter().enumerate() {
        let repository = format!("library/app{number}");
        pull(&larder, &repository, "latest", image).await;
        let answer = larder
            .get(&manifest_path(&repository, &image.manifest.digest))
            .await;
        assert_eq!(
            answer.header("content-type"),
            Some(image.manifest.media_type.as_str())
        );
    }
}

/// Something that happens to a file.
type Damage = fn(&Path);

#[tokio::test]
async fn damaged_files_are_a_miss_and_never_an_answer() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(3);
    upstream.push_tagged("app", "1", &image);
    let volume = tempfile::tempdir().unwrap();
    let layer = &image.layers[0];
    let damages: [(&str, Damage); 4] = [
        ("gone", |path| std::fs::remove_file(path).unwrap()),
        ("empty", |path| std::fs::write(path, "").unwrap()),
        ("short", |path| {
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }),
        ("a folder", |path| {
            std::fs::remove_file(path).unwrap();
            std::fs::create_dir(path).unwrap();
        }),
    ];
    for (kind, damage) in damages {
        for digest in [&layer.digest, &image.manifest.digest, &image.config.digest] {
            std::fs::remove_dir_all(volume.path()).unwrap();
            write_like_distribution(volume.path(), "app", "1", &image);
            let builder = Builder::new(&upstream.url()).root(volume.path());
            let hex = digest.trim_start_matches("sha256:");
            damage(
                &volume
                    .path()
                    .join("docker/registry/v2/blobs/sha256")
                    .join(&hex[..2])
                    .join(hex)
                    .join("data"),
            );
            let larder = builder.start().await;
            for _ in 0..2 {
                pull(&larder, "app", "1", &image).await;
            }
            drop(larder);
        }
        assert!(upstream.log().all().len() >= 3, "{kind}");
    }
}

#[tokio::test]
async fn files_that_vanish_under_a_running_larder_are_fetched_again() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(4);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    remove_folder(&larder.root().join("docker/registry/v2/blobs"));
    pull(&larder, "app", "1", &image).await;
    larder
        .get(&manifest_path("app", &image.manifest.digest))
        .await
        .is_whole(&image.manifest.bytes);
    larder.until_idle().await;
    std::fs::write(larder.data_path(&image.layers[0].digest), "").unwrap();
    pull(&larder, "app", "1", &image).await;
}

/// Removes a folder into which a commit may still be sent.
fn remove_folder(folder: &Path) {
    for _ in 0..100 {
        if std::fs::remove_dir_all(folder).is_ok() {
            return;
        }
    }
    panic!("cannot remove {}", folder.display());
}

#[tokio::test]
async fn bytes_written_over_after_they_were_verified_are_never_served() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(6);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    let layer = &image.layers[0];
    let path = larder.data_path(&layer.digest);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0] ^= 1;
    // Times of files are compared by the second: what is written within one may be the commit itself.
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    std::fs::write(&path, &bytes).unwrap();
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    assert_eq!(upstream.log().gets_of(&layer.digest), 2);
    pull(&larder, "app", "1", &image).await;
}

#[tokio::test]
async fn a_pipe_in_the_place_of_bytes_is_a_miss_and_larder_still_stops() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    upstream.push_tagged("app", "1", &image);
    let mut larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    let path = larder.data_path(&image.layers[0].digest);
    std::fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    pull(&larder, "app", "1", &image).await;
    larder.terminate();
    assert_eq!(larder.exit_code().await, Some(0));
}

#[tokio::test]
async fn damaged_links_are_a_miss() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(5);
    upstream.push_tagged("app", "1", &image);
    for content in ["", "sha256:", "sha256:0000", "rubbish\n", "\u{0}\u{0}"] {
        let volume = tempfile::tempdir().unwrap();
        write_like_distribution(volume.path(), "app", "1", &image);
        for link in links_below(volume.path()) {
            std::fs::write(link, content).unwrap();
        }
        let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
        for _ in 0..2 {
            pull(&larder, "app", "1", &image).await;
        }
    }
}

fn links_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(links_below(&path));
        } else if path.ends_with("link") {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn an_index_that_is_lost_or_rubbish_loses_nothing() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(6);
    let multi = index_of(OCI_INDEX, &[&image.manifest]);
    upstream.push_tagged("app", "1", &image);
    upstream.tag("app", "multi", &multi);
    let mut larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder
        .get(&manifest_path("app", "multi"))
        .await
        .is_whole(&multi.bytes);
    upstream.refuse().await;
    for is_removed in [true, false] {
        let root = larder.root();
        let builder = larder.stop().await;
        let own = root.join("larder");
        if is_removed {
            std::fs::remove_dir_all(&own).unwrap();
        } else {
            ruin_files_below(&own);
        }
        larder = builder.start().await;
        pull(&larder, "app", "1", &image).await;
        larder
            .get(&manifest_path("app", "multi"))
            .await
            .is_whole(&multi.bytes);
    }
}

fn ruin_files_below(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            ruin_files_below(&path);
        } else {
            std::fs::write(path, "not an index").unwrap();
        }
    }
}

#[tokio::test]
async fn foreign_state_files_are_no_reason_not_to_start() {
    let upstream = TestUpstream::start().await;
    for state in ["", "{", "\u{0}\u{1}", "[1, 2]", "{\"sha256:x\": null}"] {
        let volume = tempfile::tempdir().unwrap();
        write(&volume.path().join("scheduler-state.json"), state);
        let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
        assert_eq!(larder.get("/v2/").await.status, 200);
    }
}

#[tokio::test]
async fn unchanged_links_are_not_rewritten() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    let times = || -> Vec<_> {
        let links = links_below(&larder.root().join("docker"));
        links
            .into_iter()
            .map(|link| {
                std::fs::metadata(&link)
                    .and_then(|about| about.modified())
                    .unwrap()
            })
            .collect()
    };
    let before = times();
    for _ in 0..5 {
        pull(&larder, "app", "1", &image).await;
    }
    assert_eq!(times(), before);
}

#[tokio::test]
async fn failed_pulls_leave_nothing_on_the_volume() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(8, 5_000_000);
    upstream.put_blob("app", &blob);
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "200ms")
        .start()
        .await;
    for fault in [
        Fault::WrongByte(4_000_000),
        Fault::ShorterBy(1000),
        Fault::CutAt(2_000_000, Cut::Fin),
        Fault::CutAt(2_000_000, Cut::Rst),
        Fault::CutAt(2_000_000, Cut::Stall),
    ] {
        upstream.heal();
        upstream.fault(on("/blobs/").ranged(false), fault);
        upstream.fault(
            on("/blobs/").ranged(true),
            Fault::Status(500, vec![], String::new()),
        );
        let answer = larder.get(&blob_path("app", &blob.digest)).await;
        assert!(answer.status != 200 || !answer.is_complete);
        larder
            .until("an empty spool", || larder.leftovers().is_empty())
            .await;
    }
    assert_eq!(larder.stored_blobs(), 0);
}

#[tokio::test]
async fn uploads_and_temporaries_of_others_are_swept_at_the_start() {
    let upstream = TestUpstream::start().await;
    let volume = tempfile::tempdir().unwrap();
    write(&volume.path().join("larder/spool/left-over"), vec![0; 1000]);
    let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
    larder
        .until("an empty spool", || larder.leftovers().is_empty())
        .await;
}

#[tokio::test]
async fn two_upstream_names_for_one_layer_are_one_file() {
    let upstream = TestUpstream::start().await;
    let shared = Blob::generated(9, 100_000);
    let images = [
        Image::oci("a", vec![shared.clone()]),
        Image::oci("b", vec![shared.clone()]),
    ];
    for (name, image) in ["a", "b"].into_iter().zip(&images) {
        upstream.push_tagged(name, "1", image);
    }
    let larder = Larder::start(&upstream).await;
    for (name, image) in ["a", "b"].into_iter().zip(&images) {
        pull(&larder, name, "1", image).await;
    }
    assert_eq!(larder.stored_blobs(), 5, "two manifests, two configs, one layer");
    assert_eq!(upstream.log().bytes_of(&shared.digest), shared.len());
}

#[tokio::test]
async fn a_full_volume_stops_no_pull() {
    let upstream = TestUpstream::start().await;
    let warm = Image::small(10);
    upstream.push_tagged("app", "warm", &warm);
    let cold: Vec<Blob> = (0..6)
        .map(|seed| Blob::generated(seed + 200, 3_000_000))
        .collect();
    for blob in &cold {
        upstream.put_blob("app", blob);
    }
    let larder = Builder::new(&upstream.url()).small_volume(6 << 20).start().await;
    pull(&larder, "app", "warm", &warm).await;
    for blob in &cold {
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
    let pulls = cold.iter().map(|blob| async {
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    });
    join_all(pulls).await;
    let late = Image::small(11);
    upstream.push_tagged("app", "late", &late);
    pull(&larder, "app", "late", &late).await;
    pull(&larder, "app", "warm", &warm).await;
}

#[tokio::test]
async fn a_spool_that_cannot_be_written_stops_no_pull_and_is_told() {
    let upstream = TestUpstream::start().await;
    let (warm, cold) = (Image::small(12), Image::small(13));
    upstream.push_tagged("app", "warm", &warm);
    upstream.push_tagged("app", "cold", &cold);
    let health = serde_json::json!({"enabled": true, "interval": "100ms", "threshold": 1});
    let larder = Builder::new(&upstream.url())
        .set("health.storagedriver", health)
        .start()
        .await;
    pull(&larder, "app", "warm", &warm).await;
    larder.until_stored(&warm.manifest.digest).await;
    let own = larder.root().join("larder");
    std::fs::remove_dir_all(own.join("spool")).ok();
    std::fs::write(own.join("spool"), "in the way").unwrap();
    pull(&larder, "app", "cold", &cold).await;
    pull(&larder, "app", "warm", &warm).await;
    let metrics = larder.metrics().await;
    let errors: f64 = metrics
        .iter()
        .filter(|(name, _)| name.contains("store_errors"))
        .map(|(_, count)| count)
        .sum();
    assert!(errors > 0.0, "{metrics:?}");
}

#[tokio::test]
async fn what_is_unlinked_by_others_is_no_answer_for_another_manifest() {
    let upstream = TestUpstream::start().await;
    let stranger = Document::new(
        "application/vnd.oci.image.manifest.v1+json",
        "{\"schemaVersion\":2,\"layers\":[]}",
    );
    let volume = tempfile::tempdir().unwrap();
    let image = Image::small(14);
    write_like_distribution(volume.path(), "app", "1", &image);
    let hex = stranger.digest.trim_start_matches("sha256:");
    let data = volume
        .path()
        .join("docker/registry/v2/blobs/sha256")
        .join(&hex[..2])
        .join(hex)
        .join("data");
    write(&data, &stranger.bytes);
    let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
    let answer = larder.get(&manifest_path("app", &stranger.digest)).await;
    assert_eq!(
        answer.status, 404,
        "bytes answer only for a repository they are linked to"
    );
}
