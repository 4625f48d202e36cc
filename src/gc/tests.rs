//! The collector on a volume of its own: the cases that distribution is known for, each by name, and a model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use parking_lot::Mutex;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::SizeLimit;
use crate::meta::{Opened, TagRecord, Totals};
use crate::metrics::Metrics;
use crate::oci::{Algorithm, Manifest, Tag};
use crate::store::Link;

const HOUR_MS: u64 = 3_600_000;
const TTL_MS: u64 = 24 * HOUR_MS;

pub(super) fn digest(bytes: &[u8]) -> Digest {
    Digest::of(Algorithm::Sha256, bytes)
}

/// A volume with an index and a collector, and what a registry does to them.
pub(super) struct Bench {
    folder: tempfile::TempDir,
    store: Store,
    index: Option<Index>,
    flights: Flights<Digest, ()>,
    clock: Clock,
    pub(super) settings: Settings,
    limit: SizeLimit,
    unlinked: Arc<Mutex<Vec<Digest>>>,
}

impl Bench {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let index = Index::open(&folder.path().join("larder/index"), 1 << 20)
            .unwrap()
            .0;
        Self {
            store,
            index: Some(index),
            flights: Flights::new(),
            clock: Clock::default(),
            settings: Settings {
                ttl: Some(Duration::from_millis(TTL_MS)),
                order: Order::Use,
                interval: Duration::from_mins(1),
                scrub_interval: None,
                scrub_rate_bytes: u64::MAX,
                upload_expiry: None,
            },
            limit: SizeLimit::Bytes(u64::MAX),
            unlinked: Arc::default(),
            folder,
        }
    }

    pub(super) fn index(&self) -> &Index {
        self.index.as_ref().unwrap()
    }

    pub(super) fn collector(&self) -> Collector<()> {
        let unlinked = Arc::clone(&self.unlinked);
        Collector::new(
            Parts {
                store: self.store.clone(),
                index: self.index().clone(),
                capacity: Capacity::new(self.store.clone(), self.index().clone(), self.limit),
                flights: self.flights.clone(),
                clock: self.clock.clone(),
                metrics: GcMetrics::register(&Metrics::new().unwrap()).unwrap(),
                on_unlinked: Arc::new(move |_, digest| unlinked.lock().push(digest.clone())),
            },
            self.settings,
        )
    }

    /// Stops and starts, with the index lost where `is_lost`.
    fn restart(&mut self, is_lost: bool) -> Opened {
        drop(self.index.take());
        let path = self.folder.path().join("larder/index");
        if is_lost {
            std::fs::remove_dir_all(&path).unwrap();
        }
        let (index, opened) = Index::open(&path, 1 << 20).unwrap();
        self.index = Some(index);
        opened
    }

    fn commit(&self, bytes: &[u8]) -> Digest {
        let digest = digest(bytes);
        if self.store.blob(&digest).unwrap().is_none() {
            let mut spool = self.store.spool(&digest).unwrap();
            spool.append(bytes).unwrap();
            self.store.commit(spool.finish(&digest).unwrap()).unwrap();
        }
        digest
    }

    async fn pull_blob(&self, repository: &str, bytes: &[u8], now_ms: u64) -> Digest {
        let digest = self.commit(bytes);
        let directory = Directory::parse(repository).unwrap();
        let link = Link::Layer(digest.clone());
        self.store.link(&directory, &link, &digest).await.unwrap();
        let size = bytes.len() as u64;
        self.index()
            .record_blob(repository, &digest, size, now_ms)
            .unwrap();
        self.index().touch(repository, &digest, now_ms);
        digest
    }

    async fn pull_manifest(&self, repository: &str, tag: &str, body: &[u8], now_ms: u64) -> Digest {
        let digest = self.commit(body);
        let directory = Directory::parse(repository).unwrap();
        let tag = Tag::parse(tag).unwrap();
        for link in [
            Link::Revision(digest.clone()),
            Link::TagIndex(tag.clone(), digest.clone()),
            Link::Tag(tag.clone()),
        ] {
            self.store.link(&directory, &link, &digest).await.unwrap();
        }
        let manifest = Manifest::parse(body, None).unwrap();
        self.index()
            .record_manifest(repository, &digest, body.len() as u64, &manifest, now_ms)
            .unwrap();
        let record = TagRecord {
            digest: digest.clone(),
            checked_at_ms: now_ms,
        };
        self.index().set_tag(repository, &tag, &record).unwrap();
        self.index().touch(repository, &digest, now_ms);
        digest
    }

    /// Pulls an image with these layers, config included, and returns its digest.
    pub(super) async fn pull(&self, repository: &str, tag: &str, layers: &[&str], now_ms: u64) -> Digest {
        let manifest = self
            .pull_manifest(repository, tag, image(layers).as_bytes(), now_ms)
            .await;
        for layer in layers {
            self.pull_blob(repository, layer.as_bytes(), now_ms).await;
        }
        manifest
    }

    pub(super) fn holds(&self, repository: &str, layer: &str) -> bool {
        let digest = digest(layer.as_bytes());
        let directory = Directory::parse(repository).unwrap();
        let linked = self
            .store
            .linked(&directory, &Link::Layer(digest.clone()))
            .unwrap();
        linked.is_some() && self.store.blob(&digest).unwrap().is_some()
    }

    fn has_tag(&self, repository: &str, tag: &str) -> bool {
        let directory = Directory::parse(repository).unwrap();
        self.store.tags(&directory).unwrap().contains(&tag.to_owned())
    }

    /// Every file below `docker/`, relative to it.
    fn files(&self) -> BTreeSet<PathBuf> {
        let root = self.folder.path().join("docker");
        let mut found = BTreeSet::new();
        let mut pending = vec![root.clone()];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else {
                    found.insert(path.strip_prefix(&root).unwrap().to_owned());
                }
            }
        }
        found
    }

    /// The files that the index explains.
    fn explained(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let short = |digest: &Digest| format!("{}/{}", digest.algorithm().as_str(), digest.hex());
        for (digest, _) in self.index().contents(None, usize::MAX).unwrap() {
            let hex = digest.hex();
            found.insert(PathBuf::from(format!(
                "registry/v2/blobs/sha256/{}/{hex}/data",
                &hex[..2]
            )));
        }
        let mut repository = None;
        while let Some(name) = self.index().next_repository(repository.as_deref()).unwrap() {
            let root = format!("registry/v2/repositories/{name}");
            for link in self.index().links(&name, None, usize::MAX).unwrap() {
                let kind = if link.record.is_manifest {
                    "_manifests/revisions"
                } else {
                    "_layers"
                };
                found.insert(PathBuf::from(format!(
                    "{root}/{kind}/{}/link",
                    short(&link.digest)
                )));
            }
            for (tag, _) in self.index().tags(&name).unwrap() {
                found.insert(PathBuf::from(format!(
                    "{root}/_manifests/tags/{tag}/current/link"
                )));
            }
            // What a tag meant before is explained for as long as that image lives.
            let directory = Directory::parse(&name).unwrap();
            for tag in self.store.tag_folders(&directory).unwrap() {
                for link in self.index().links(&name, None, usize::MAX).unwrap() {
                    let trace = Link::TagIndex(Tag::parse(&tag).unwrap(), link.digest.clone());
                    if self.store.linked(&directory, &trace).unwrap().is_some() {
                        let place = short(&link.digest);
                        found.insert(PathBuf::from(format!(
                            "{root}/_manifests/tags/{tag}/index/{place}/link"
                        )));
                    }
                }
            }
            repository = Some(name);
        }
        found
    }
}

pub(super) fn image(layers: &[&str]) -> String {
    let layers: Vec<String> = layers
        .iter()
        .map(|layer| {
            let digest = digest(layer.as_bytes());
            format!(
                r#"{{"mediaType":"l/l","digest":"{digest}","size":{}}}"#,
                layer.len()
            )
        })
        .collect();
    format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","))
}

fn index_of(children: &[&Digest]) -> String {
    let children: Vec<String> = children
        .iter()
        .map(|digest| format!(r#"{{"mediaType":"m/m","digest":"{digest}","size":1}}"#))
        .collect();
    format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, children.join(","))
}

#[tokio::test]
async fn distribution_4191_a_shared_layer_outlives_the_first_image() {
    let bench = Bench::new();
    bench.pull("a", "one", &["shared", "only a"], 1000).await;
    bench
        .pull("b", "two", &["shared", "only b"], 1000 + HOUR_MS)
        .await;
    bench.collector().pass(1001 + TTL_MS).await.unwrap();
    assert!(bench.holds("b", "shared") && bench.holds("b", "only b"));
    assert!(!bench.holds("a", "shared") && !bench.holds("a", "only a"));
    assert!(!bench.has_tag("a", "one") && bench.has_tag("b", "two"));
    assert_eq!(bench.files(), bench.explained());
    assert!(bench.unlinked.lock().contains(&digest(b"only a")));
}

#[tokio::test]
async fn distribution_4249_turning_the_ttl_on_reclaims_what_was_cached_before() {
    let mut bench = Bench::new();
    bench.settings.ttl = None;
    bench.pull("a", "one", &["x"], 1000).await;
    bench.collector().pass(1000 * TTL_MS).await.unwrap();
    assert!(bench.holds("a", "x"));
    bench.settings.ttl = Some(Duration::from_secs(3));
    bench.collector().pass(1000 * TTL_MS).await.unwrap();
    assert_eq!(bench.files(), BTreeSet::new());
    assert_eq!(bench.index().totals().unwrap(), Totals::default());
}

#[tokio::test]
async fn distribution_4659_use_renews_life_and_never_does_not() {
    for (order, lives) in [(Order::Use, true), (Order::Added, false)] {
        let mut bench = Bench::new();
        bench.settings.order = order;
        bench.pull("a", "one", &["x"], 1000).await;
        bench
            .index()
            .touch("a", &digest(image(&["x"]).as_bytes()), 1000 + HOUR_MS);
        bench.collector().pass(1001 + TTL_MS).await.unwrap();
        assert_eq!(bench.holds("a", "x"), lives, "{order:?}");
        bench.collector().pass(1001 + TTL_MS + HOUR_MS).await.unwrap();
        assert_eq!(bench.files(), BTreeSet::new());
    }
}

#[tokio::test]
async fn an_index_keeps_its_children_and_a_pin_keeps_everything() {
    let bench = Bench::new();
    let child = bench.pull("a", "child", &["x"], 1000).await;
    let top = bench
        .pull_manifest("a", "top", index_of(&[&child]).as_bytes(), 1000)
        .await;
    bench.index().touch("a", &top, 1000 + HOUR_MS);
    bench.collector().pass(1001 + TTL_MS).await.unwrap();
    assert!(bench.holds("a", "x"));
    bench.index().set_pinned("a", &top, true).unwrap();
    bench.collector().pass(1001 + 2 * TTL_MS).await.unwrap();
    bench.collector().pass(1001 + 20 * TTL_MS).await.unwrap();
    assert!(bench.holds("a", "x") && bench.has_tag("a", "top"));
    bench.index().set_pinned("a", &top, false).unwrap();
    bench.collector().pass(1001 + 40 * TTL_MS).await.unwrap();
    assert_eq!(bench.files(), BTreeSet::new());
}

#[tokio::test]
async fn owned_repositories_keep_their_images_and_lose_blobs_that_no_manifest_claims() {
    let mut bench = Bench::new();
    let owned = |name: &str| name.starts_with("own/");
    bench.pull("own/app", "1", &["x"], 1000).await;
    bench.pull("other", "1", &["y"], 1000).await;
    bench.pull_blob("own/app", b"unclaimed", 1000).await;
    bench.restart(true);
    bench.index().pin_repositories(owned);
    let token = CancellationToken::new();
    bench.collector().rebuild(None, &token).await.unwrap();
    let now_ms = bench.clock.now_ms();
    bench.limit = SizeLimit::Bytes(1);
    bench.collector().pass(now_ms + 20 * HOUR_MS).await.unwrap();
    assert!(bench.holds("own/app", "x") && bench.holds("own/app", "unclaimed"));
    assert!(!bench.holds("other", "y"));
    bench.collector().pass(now_ms + 2 * TTL_MS).await.unwrap();
    assert!(bench.holds("own/app", "x") && bench.has_tag("own/app", "1"));
    assert!(!bench.holds("own/app", "unclaimed"));
}

#[tokio::test]
async fn bytes_stay_while_their_slot_is_taken() {
    let bench = Bench::new();
    bench.pull("a", "one", &["x"], 1000).await;
    let slot = bench.flights.hold(&digest(b"x")).unwrap();
    bench.collector().pass(1001 + TTL_MS).await.unwrap();
    assert!(bench.store.blob(&digest(b"x")).unwrap().is_some());
    drop(slot);
    bench.collector().pass(1001 + TTL_MS).await.unwrap();
    assert_eq!(bench.files(), BTreeSet::new());
}

#[tokio::test]
async fn a_moved_tag_leaves_nothing_behind_when_the_old_image_expires() {
    let bench = Bench::new();
    bench.pull("a", "latest", &["old"], 1000).await;
    bench.pull("a", "latest", &["new"], 1000 + HOUR_MS).await;
    bench.collector().pass(1001 + TTL_MS).await.unwrap();
    assert!(bench.holds("a", "new") && bench.has_tag("a", "latest"));
    assert_eq!(bench.files(), bench.explained());
}

#[tokio::test]
async fn the_least_recently_used_image_is_evicted_whole_and_shared_layers_stay() {
    let mut bench = Bench::new();
    let layers = ["a".repeat(400), "b".repeat(400), "c".repeat(400), "s".repeat(400)];
    let [a, b, c, s] = [&layers[0], &layers[1], &layers[2], &layers[3]];
    bench.pull("r", "a", &[a, s], 1000).await;
    bench.pull("r", "b", &[b, s], 2000).await;
    bench.pull("r", "c", &[c, s], 3000).await;
    bench.index().touch("r", &digest(image(&[a, s]).as_bytes()), 4000);
    let used = bench.index().totals().unwrap().bytes;
    bench.limit = SizeLimit::Bytes(used - 1);
    let freed = bench.collector().evict(HOUR_MS).await.unwrap();
    assert_eq!(freed, 400 + image(&[b, s]).len() as u64);
    assert!(!bench.holds("r", b) && bench.holds("r", a) && bench.holds("r", c) && bench.holds("r", s));
    assert!(!bench.has_tag("r", "b") && bench.has_tag("r", "c"));
    assert_eq!(bench.files(), bench.explained());
}

#[tokio::test]
async fn what_is_pulled_right_now_is_not_evicted() {
    let mut bench = Bench::new();
    bench.pull("r", "a", &["xxxx"], HOUR_MS).await;
    bench.limit = SizeLimit::Bytes(1);
    bench.collector().evict(HOUR_MS + 1).await.unwrap();
    assert!(bench.holds("r", "xxxx"));
    bench.collector().evict(2 * HOUR_MS).await.unwrap();
    assert_eq!(bench.files(), BTreeSet::new());
}

#[tokio::test]
async fn a_lost_index_is_rebuilt_from_the_files() {
    let mut bench = Bench::new();
    let now_ms = bench.clock.now_ms();
    bench.pull("a", "one", &["x", "y"], now_ms).await;
    bench.pull("b/c", "two", &["x"], now_ms).await;
    let before = bench.index().totals().unwrap();
    // What nothing explains: bytes without a link, a link without bytes, a tag without a manifest.
    bench.commit(b"orphan");
    let directory = Directory::parse("a").unwrap();
    let gone = digest(b"gone");
    for link in [
        Link::Layer(gone.clone()),
        Link::Revision(gone.clone()),
        Link::Tag(Tag::parse("t").unwrap()),
    ] {
        bench.store.link(&directory, &link, &gone).await.unwrap();
    }
    assert_eq!(bench.restart(true), Opened::Fresh);
    let collector = bench.collector();
    collector.rebuild(None, &CancellationToken::new()).await.unwrap();
    assert_eq!(bench.index().totals().unwrap(), before);
    assert_eq!(bench.files(), bench.explained());
    assert!(bench.holds("b/c", "x") && bench.has_tag("a", "one"));
    assert_eq!(bench.index().parents(&digest(b"x")).unwrap().len(), 2);
}

#[tokio::test]
async fn a_table_of_expiries_is_written_and_read_back() {
    let mut bench = Bench::new();
    let now_ms = bench.clock.now_ms();
    bench.pull("a", "one", &["x"], now_ms - 5 * HOUR_MS).await;
    bench.collector().write_state_file().unwrap();
    bench.restart(true);
    bench
        .collector()
        .rebuild(None, &CancellationToken::new())
        .await
        .unwrap();
    let link = bench.index().link("a", &digest(b"x")).unwrap().unwrap();
    assert_eq!(link.last_use_ms, now_ms - 5 * HOUR_MS);
    let table = std::fs::read(bench.folder.path().join("scheduler-state.json")).unwrap();
    let table: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&table).unwrap();
    assert_eq!(table[&format!("a@{}", digest(b"x"))]["EntryType"], 0);
}

#[tokio::test]
async fn a_flipped_bit_is_found_and_moved_away() {
    let bench = Bench::new();
    bench.pull("a", "one", &["good", "evil"], 1000).await;
    let evil = digest(b"evil");
    let path = bench.folder.path().join(format!(
        "docker/registry/v2/blobs/sha256/{}/{}/data",
        &evil.hex()[..2],
        evil.hex()
    ));
    std::fs::write(path, b"evol").unwrap();
    let scrubbed = bench
        .collector()
        .scrub(2000, u64::MAX, &CancellationToken::new())
        .await;
    assert_eq!(scrubbed.unwrap(), (2, 1));
    assert!(bench.holds("a", "good") && !bench.holds("a", "evil"));
    assert_eq!(bench.files(), bench.explained());
}

/// Runs the collector's tasks until the first pass has noted the time, and ends them.
async fn run_until_seen(bench: &Bench) {
    let tracker = tokio_util::task::TaskTracker::new();
    let token = CancellationToken::new();
    let opened = Opened::Existing {
        is_clean: true,
        is_complete: true,
    };
    let now_ms = bench.clock.now_ms();
    bench.collector().start(opened, &tracker, &token);
    let seen = async {
        let tolerance_ms = HOUR_MS;
        while bench
            .index()
            .last_seen()
            .unwrap()
            .is_none_or(|seen| seen.abs_diff(now_ms) > tolerance_ms)
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), seen).await.unwrap();
    token.cancel();
    tracker.close();
    tracker.wait().await;
}

#[tokio::test]
async fn a_clock_that_is_set_neither_empties_nor_freezes_the_cache() {
    let bench = Bench::new();
    let now_ms = bench.clock.now_ms();
    bench.pull("a", "one", &["x"], now_ms - HOUR_MS).await;
    bench.index().set_last_seen(now_ms).unwrap();
    let last_use = || {
        bench
            .index()
            .link("a", &digest(b"x"))
            .unwrap()
            .unwrap()
            .last_use_ms
    };
    bench.clock.advance(i64::try_from(1000 * TTL_MS).unwrap());
    run_until_seen(&bench).await;
    assert!(bench.holds("a", "x"));
    assert!(last_use() > now_ms + 999 * TTL_MS);
    bench.clock.advance(-i64::try_from(1000 * TTL_MS).unwrap());
    run_until_seen(&bench).await;
    assert!(bench.holds("a", "x"));
    assert!(last_use() <= bench.clock.now_ms());
}

#[derive(Debug, Clone)]
enum Step {
    Pull(u8, u8, Vec<u8>),
    Use(usize),
    Wait(u64),
    Pass,
    Evict(u64),
    Restart,
    LoseIndex,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2_u8, 0..3_u8, proptest::collection::vec(0..5_u8, 1..4)).prop_map(|(r, t, l)| Step::Pull(r, t, l)),
        2 => (0..10_usize).prop_map(Step::Use),
        2 => (1..20_u64).prop_map(Step::Wait),
        3 => Just(Step::Pass),
        1 => (10..100_u64).prop_map(Step::Evict),
        1 => Just(Step::Restart),
        1 => Just(Step::LoseIndex),
    ]
}

/// An image as the model knows it.
#[derive(Debug, Clone)]
struct Known {
    repository: String,
    manifest: Digest,
    layers: Vec<String>,
    used_at_hour: u64,
}

/// The simple truth: which images there are, and when each was used last, in hours since the beginning.
#[derive(Debug, Default)]
struct Model {
    hour: u64,
    images: Vec<Known>,
}

impl Model {
    fn is_alive(&self, image: &Known) -> bool {
        image.used_at_hour + TTL_MS / HOUR_MS > self.hour
    }

    async fn run(&mut self, bench: &mut Bench, step: &Step) {
        let now_ms = bench.clock.now_ms();
        match step {
            Step::Pull(repository, tag, layers) => {
                let repository = format!("r{repository}");
                let layers: Vec<String> = layers.iter().map(|l| format!("layer {l}")).collect();
                let names: Vec<&str> = layers.iter().map(String::as_str).collect();
                let manifest = bench.pull(&repository, &format!("t{tag}"), &names, now_ms).await;
                self.images
                    .retain(|i| (&i.repository, &i.manifest) != (&repository, &manifest));
                let used_at_hour = self.hour;
                self.images.push(Known {
                    repository,
                    manifest,
                    layers,
                    used_at_hour,
                });
            }
            Step::Use(number) => {
                let count = self.images.len().max(1);
                if let Some(image) = self.images.get_mut(number % count) {
                    bench.index().touch(&image.repository, &image.manifest, now_ms);
                    image.used_at_hour = self.hour;
                }
            }
            Step::Wait(hours) => {
                self.hour += hours;
                bench.clock.advance(i64::try_from(hours * HOUR_MS).unwrap());
            }
            Step::Pass => {
                bench.collector().pass(now_ms).await.unwrap();
                let hour = self.hour;
                self.images.retain(|i| i.used_at_hour + TTL_MS / HOUR_MS > hour);
            }
            Step::Evict(percent) => {
                let used = bench.index().totals().unwrap().bytes;
                bench.limit = SizeLimit::Bytes(used * percent / 100);
                bench.collector().evict(now_ms).await.unwrap();
                bench.limit = SizeLimit::Bytes(u64::MAX);
                let index = bench.index();
                self.images
                    .retain(|i| index.link(&i.repository, &i.manifest).unwrap().is_some());
            }
            Step::Restart => {
                bench.index().flush_touches().unwrap();
                bench.restart(false);
            }
            Step::LoseIndex => {
                bench.restart(true);
                bench
                    .collector()
                    .rebuild(None, &CancellationToken::new())
                    .await
                    .unwrap();
                // All files were written within the first hour of real time.
                self.images.iter_mut().for_each(|image| image.used_at_hour = 0);
            }
        }
    }

    fn hold(&self, bench: &Bench, after: &Step) {
        for image in &self.images {
            let link = bench.index().link(&image.repository, &image.manifest).unwrap();
            assert!(link.is_some(), "{image:?} is gone after {after:?}");
            for layer in &image.layers {
                assert!(
                    bench.holds(&image.repository, layer),
                    "{image:?} lacks {layer} after {after:?}"
                );
            }
        }
        if matches!(after, Step::Pass) {
            assert!(self.images.iter().all(|image| self.is_alive(image)));
            assert_eq!(bench.index().totals().unwrap().roots, self.images.len() as u64);
        }
        if matches!(after, Step::Pass | Step::LoseIndex) {
            assert_eq!(bench.files(), bench.explained(), "after {after:?}");
        }
        for layer in 0..5 {
            let layer = format!("layer {layer}");
            let manifests: BTreeSet<&Digest> = self
                .images
                .iter()
                .filter(|image| image.layers.contains(&layer))
                .map(|image| &image.manifest)
                .collect();
            let count = bench.index().parents(&digest(layer.as_bytes())).unwrap().len();
            assert_eq!(count, manifests.len(), "references to {layer} after {after:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn whatever_happens_nothing_needed_goes_and_nothing_dead_stays(
        steps in proptest::collection::vec(step(), 1..30)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new();
            let mut model = Model::default();
            for step in &steps {
                model.run(&mut bench, step).await;
                model.hold(&bench, step);
            }
        });
    }
}
