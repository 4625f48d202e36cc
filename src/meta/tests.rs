//! The index against what it promises: references both ways, sums, order of age, and survival of damage.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::oci::manifest::Role;
use crate::oci::{Algorithm, Digest, Manifest, Tag};

fn digest(text: &str) -> Digest {
    Digest::of(Algorithm::Sha256, text.as_bytes())
}

fn open(path: &Path) -> (Index, Opened) {
    Index::open(path, 1024 * 1024).unwrap()
}

fn index() -> (tempfile::TempDir, Index) {
    let folder = tempfile::tempdir().unwrap();
    let index = open(&folder.path().join("index")).0;
    (folder, index)
}

/// A manifest with a config, the layers named, and a subject where one is named.
fn image(layers: &[&str], subject: Option<&str>) -> Manifest {
    let descriptor = |of: &str| format!(r#"{{"mediaType":"x/y","digest":"{}","size":7}}"#, digest(of));
    let layers: Vec<String> = layers.iter().map(|l| descriptor(l)).collect();
    let subject = subject.map_or_else(String::new, |s| format!(r#","subject":{}"#, descriptor(s)));
    let body = format!(
        r#"{{"schemaVersion":2,"config":{},"layers":[{}]{subject}}}"#,
        descriptor("config"),
        layers.join(",")
    );
    Manifest::parse(body.as_bytes(), None).unwrap()
}

#[test]
fn a_manifest_and_its_references_come_and_go_together() {
    let (_folder, index) = index();
    let (one, two) = (digest("one"), digest("two"));
    index
        .record_manifest("r", &one, 100, &image(&["shared", "shared", "own"], None), 1)
        .unwrap();
    index
        .record_manifest("r", &two, 100, &image(&["shared"], None), 2)
        .unwrap();
    assert_eq!(index.edges(&one).unwrap().len(), 3);
    assert_eq!(index.parents(&digest("shared")).unwrap().len(), 2);
    assert_eq!(index.declared_size(&digest("own")).unwrap(), Some(7));
    index.forget(&one).unwrap();
    assert_eq!(
        index.parents(&digest("shared")).unwrap(),
        [(two.clone(), Role::Layer)]
    );
    assert_eq!(index.declared_size(&digest("own")).unwrap(), None);
    assert_eq!(
        index.totals().unwrap(),
        Totals {
            contents: 1,
            manifests: 1,
            bytes: 100,
            links: 1,
            roots: 1
        }
    );
}

#[test]
fn referrers_are_listed_only_where_they_are_linked() {
    let (_folder, index) = index();
    let signature = digest("signature");
    index
        .record_manifest("a", &signature, 50, &image(&[], Some("image")), 1)
        .unwrap();
    let found = index.referrers("a", &digest("image")).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].digest, signature.to_string());
    assert_eq!(found[0].size, 50);
    assert!(index.referrers("b", &digest("image")).unwrap().is_empty());
    index.unlink("a", &signature).unwrap();
    assert!(index.referrers("a", &digest("image")).unwrap().is_empty());
}

#[test]
fn a_tag_is_remembered_until_it_is_removed() {
    let (_folder, index) = index();
    let tag = Tag::parse("latest").unwrap();
    let record = TagRecord {
        digest: digest("x"),
        checked_at_ms: 5,
    };
    index.set_tag("r", &tag, &record).unwrap();
    assert_eq!(index.tag("r", &tag).unwrap(), Some(record));
    assert_eq!(
        index.tags_of("r", &digest("x")).unwrap(),
        std::slice::from_ref(&tag)
    );
    assert_eq!(index.tag("r2", &tag).unwrap(), None);
    index.remove_tag("r", &tag).unwrap();
    assert_eq!(index.tag("r", &tag).unwrap(), None);
}

fn walk(index: &Index, order: Order) -> Vec<String> {
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let (links, last) = index.oldest(order, after.as_ref(), 2).unwrap();
        found.extend(links.into_iter().map(|l| l.repository));
        if last.is_none() {
            return found;
        }
        after = last;
    }
}

#[test]
fn links_are_walked_oldest_first_and_a_touch_moves_one_to_the_end() {
    let (_folder, index) = index();
    for (at, repository) in ["a", "b", "c", "d"].iter().enumerate() {
        index
            .record_blob(repository, &digest("x"), 1, 10 + at as u64)
            .unwrap();
    }
    assert_eq!(walk(&index, Order::Use), ["a", "b", "c", "d"]);
    index.touch("b", &digest("x"), 99);
    assert_eq!(walk(&index, Order::Use), ["a", "c", "d", "b"]);
    index.flush_touches().unwrap();
    assert_eq!(
        index.link("b", &digest("x")).unwrap().map(|l| l.last_use_ms),
        Some(99)
    );
    assert_eq!(walk(&index, Order::Added), ["a", "b", "c", "d"]);
    assert_eq!(index.holders(&digest("x")).unwrap(), ["a", "b", "c", "d"]);
    assert_eq!(
        index.content(&digest("x")).unwrap().map(|c| c.link_count),
        Some(4)
    );
    assert!(index.unlink("a", &digest("x")).unwrap());
    assert!(!index.unlink("a", &digest("x")).unwrap());
    assert_eq!(walk(&index, Order::Use), ["c", "d", "b"]);
    assert_eq!(index.next_repository(Some("b")).unwrap().as_deref(), Some("c"));
    assert_eq!(index.totals().unwrap().links, 3);
}

#[tokio::test]
async fn what_was_recorded_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let (index, opened) = open(&path);
    assert_eq!(opened, Opened::Fresh);
    index.record_blob("r", &digest("x"), 3, 1).unwrap();
    index.mark_complete(true).unwrap();
    index.close().await.unwrap();
    drop(index);
    let (index, opened) = open(&path);
    assert_eq!(
        opened,
        Opened::Existing {
            is_clean: true,
            is_complete: true
        }
    );
    assert_eq!(
        index.content(&digest("x")).unwrap().map(|c| c.size_bytes),
        Some(3)
    );
    drop(index);
    assert_eq!(
        open(&path).1,
        Opened::Existing {
            is_clean: false,
            is_complete: true
        }
    );
}

#[test]
fn a_second_opening_is_refused_in_words() {
    let (folder, _index) = index();
    let error = Index::open(&folder.path().join("index"), 1024 * 1024).unwrap_err();
    assert!(matches!(error, Error::InUse(_)));
    assert!(error.to_string().contains("in use by another process"));
}

#[test]
fn an_unusable_index_is_replaced_and_the_reason_told() {
    let damages: [fn(&Path); 3] = [
        |path| fs::write(path.join("db"), vec![0xa5; 600_000]).unwrap(),
        |path| {
            fs::remove_dir_all(path).unwrap();
            fs::write(path, b"a file").unwrap();
        },
        |path| {
            let db = sled::open(path).unwrap();
            db.open_tree("state").unwrap().insert("schema", b"0").unwrap();
        },
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        open(&path).0.record_blob("r", &digest("x"), 3, 1).unwrap();
        damage(&path);
        let (index, opened) = open(&path);
        assert!(
            matches!(opened, Opened::Replaced(_)),
            "damage {number}: {opened:?}"
        );
        assert_eq!(index.totals().unwrap(), Totals::default());
        index.record_blob("r", &digest("x"), 3, 1).unwrap();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Blob(u8, u8),
    Manifest(u8, u8, Vec<u8>),
    Unlink(u8, u8),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let (repository, content) = (0..3_u8, 0..5_u8);
    prop_oneof![
        (repository.clone(), content.clone()).prop_map(|(r, c)| Step::Blob(r, c)),
        (
            repository.clone(),
            5..8_u8,
            proptest::collection::vec(0..8_u8, 0..4)
        )
            .prop_map(|(r, c, l)| Step::Manifest(r, c, l)),
        (repository, 0..8_u8).prop_map(|(r, c)| Step::Unlink(r, c)),
        (0..8_u8).prop_map(Step::Forget),
    ]
}

fn run(index: &Index, step: &Step, now_ms: u64) {
    let repository = |r: &u8| format!("r{r}");
    let of = |c: &u8| digest(&c.to_string());
    match step {
        Step::Blob(r, c) => index.record_blob(&repository(r), &of(c), 10, now_ms).unwrap(),
        Step::Manifest(r, c, layers) => {
            let names: Vec<String> = layers.iter().map(u8::to_string).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            index
                .record_manifest(&repository(r), &of(c), 20, &image(&names, None), now_ms)
                .unwrap();
        }
        Step::Unlink(r, c) => {
            index.unlink(&repository(r), &of(c)).unwrap();
        }
        Step::Forget(c) => index.forget(&of(c)).unwrap(),
    }
}

/// Counts everything the slow way.
fn scanned(index: &Index) -> Totals {
    let mut totals = Totals::default();
    for (digest, record) in index.contents(None, usize::MAX).unwrap() {
        totals.contents += 1;
        totals.manifests += u64::from(record.is_manifest);
        totals.bytes += record.size_bytes;
        assert_eq!(record.link_count as usize, index.holders(&digest).unwrap().len());
    }
    let mut repository = None;
    while let Some(name) = index.next_repository(repository.as_deref()).unwrap() {
        for link in index.links(&name, None, usize::MAX).unwrap() {
            totals.links += 1;
            totals.roots += u64::from(link.record.is_manifest);
        }
        repository = Some(name);
    }
    totals
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sums_and_counts_never_drift(steps in proptest::collection::vec(step(), 1..40)) {
        let (_folder, index) = index();
        for (now_ms, step) in (1..).zip(&steps) {
            run(&index, step, now_ms);
        }
        prop_assert_eq!(index.totals().unwrap(), scanned(&index));
        let by_age = walk(&index, Order::Use).len() as u64;
        prop_assert_eq!(by_age, index.totals().unwrap().links);
        prop_assert_eq!(walk(&index, Order::Added).len() as u64, by_age);
    }
}
