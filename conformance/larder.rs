//! The program under test: the real binary as a child process, with a config file, a volume and two listeners.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Child;
use tokio::time::Instant;

use crate::client::{Answer, Download};
use crate::launch::Output;
pub(crate) use crate::launch::{Builder, Failure};
use crate::upstream::TestUpstream;

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running larder.
pub(crate) struct Larder {
    child: Child,
    builder: Builder,
    output: Output,
    pub(crate) registry: String,
    pub(crate) admin: String,
}

impl Larder {
    /// Starts in front of `upstream`, with the usual config.
    pub(crate) async fn start(upstream: &TestUpstream) -> Self {
        Builder::new(&upstream.url()).start().await
    }

    /// Takes a child that was started, and waits until both listeners are named in its log.
    pub(crate) async fn ready(child: Child, output: Output, builder: Builder) -> Self {
        let mut larder = Self {
            child,
            builder,
            output,
            registry: String::new(),
            admin: String::new(),
        };
        larder.wait_until_ready().await;
        larder
    }

    async fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let (Some(registry), Some(admin)) =
                (self.output.listener("registry"), self.output.listener("admin"))
            {
                (self.registry, self.admin) = (registry, admin);
                return;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!(
                    "larder ended with {status} instead of listening:\n{}",
                    self.output.text()
                );
            }
            assert!(
                Instant::now() < deadline,
                "larder does not listen:\n{}",
                self.output.text()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[]).await
    }

    pub(crate) async fn head(&self, path: &str) -> Answer {
        self.ask("HEAD", path, &[]).await
    }

    /// GET with a `Range`.
    pub(crate) async fn range(&self, path: &str, range: &str) -> Answer {
        self.ask("GET", path, &[("Range", range)]).await
    }

    /// Sends a request and reads the whole answer.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let download = Download::open(&self.registry, method, path, headers).await;
        download
            .unwrap_or_else(|error| panic!("{method} {path}: no answer: {error}"))
            .rest()
            .await
    }

    /// Sends a request and reads the head of the answer only.
    pub(crate) async fn open(&self, path: &str, headers: &[(&str, &str)]) -> Download {
        let download = Download::open(&self.registry, "GET", path, headers).await;
        download.unwrap_or_else(|error| panic!("GET {path}: no answer: {error}"))
    }

    /// GET on the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> Answer {
        let download = Download::open(&self.admin, "GET", path, &[]).await;
        download
            .unwrap_or_else(|error| panic!("admin {path}: no answer: {error}"))
            .rest()
            .await
    }

    /// All metrics, by `name{labels}` as printed.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let answer = self.admin("/metrics").await;
        assert_eq!(answer.status, 200);
        let lines = answer.text();
        let samples = lines
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            });
        samples.collect()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = self
            .child
            .id()
            .and_then(|id| rustix::process::Pid::from_raw(id.cast_signed()));
        let pid = pid.expect("larder still runs");
        rustix::process::kill_process(pid, signal).expect("the child is ours");
    }

    /// Waits for the end and tells the exit code.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| panic!("larder does not stop:\n{}", self.output.text()));
        status.expect("a child can be waited for").code()
    }

    /// Kills at once, as the kernel does, and gives back what is needed to start again on the same volume.
    pub(crate) async fn kill(mut self) -> Builder {
        self.child.kill().await.expect("larder still ran");
        self.builder.clone()
    }

    /// Stops in good order, and gives back what is needed to start again on the same volume.
    pub(crate) async fn stop(mut self) -> Builder {
        self.terminate();
        assert_eq!(self.exit_code().await, Some(0), "{}", self.output.text());
        self.builder.clone()
    }

    /// Stops and starts again on the same volume.
    pub(crate) async fn restart(self) -> Self {
        self.stop().await.start().await
    }

    /// What larder logged.
    pub(crate) fn log(&self) -> String {
        self.output.text()
    }

    /// The volume, as larder sees it.
    pub(crate) fn root(&self) -> PathBuf {
        let root = &self.builder.root;
        match (self.builder.volume_bytes, self.child.id()) {
            (Some(_), Some(pid)) => PathBuf::from(format!("/proc/{pid}/root{}", root.display())),
            _ => root.clone(),
        }
    }

    /// A folder beside the volume.
    pub(crate) fn folder(&self) -> &Path {
        self.builder.folder()
    }

    /// Where distribution keeps this blob.
    pub(crate) fn data_path(&self, digest: &str) -> PathBuf {
        let (algorithm, hex) = digest.split_once(':').expect("a digest");
        let prefix = hex.get(..2).expect("a digest");
        self.builder
            .root
            .join("docker/registry/v2/blobs")
            .join(algorithm)
            .join(prefix)
            .join(hex)
            .join("data")
    }

    /// Files on the volume with their sizes, by path below the root; larder's index left out.
    pub(crate) fn files(&self) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        let root = self.root();
        collect_files(&root, &root, &mut found);
        found.retain(|path, _| !path.starts_with("larder/index"));
        found
    }

    /// Data files on the volume.
    pub(crate) fn stored_blobs(&self) -> usize {
        self.files()
            .keys()
            .filter(|path| path.starts_with("docker/") && path.ends_with("/data"))
            .count()
    }

    /// Files of unfinished work.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let files = self.files();
        let is_leftover = |path: &&String| {
            path.contains("spool")
                || path.contains("_uploads")
                || Path::new(path)
                    .extension()
                    .is_some_and(|extension| extension == "tmp")
        };
        files.keys().filter(is_leftover).cloned().collect()
    }

    /// Waits until no fill is under way: what was answered whole is then on the volume and in the index.
    pub(crate) async fn until_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.metrics().await.get("registry_proxy_fills_in_flight") != Some(&0.0) {
            assert!(Instant::now() < deadline, "fills without end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the blob stands on the volume.
    pub(crate) async fn until_stored(&self, digest: &str) {
        let path = self.data_path(digest);
        self.until(&format!("{digest} on the volume"), || path.exists())
            .await;
    }

    /// Waits until `is_so`, at most ten seconds.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            assert!(Instant::now() < deadline, "never came about: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A field of `/proc/PID/status` that counts KiB.
    pub(crate) fn memory_kib(&self, field: &str) -> u64 {
        let pid = self.child.id().expect("larder still runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
        let line = status
            .lines()
            .find(|line| line.starts_with(field))
            .expect("a field of every process");
        let number = line
            .split_whitespace()
            .nth(1)
            .and_then(|number| number.parse().ok());
        number.expect("a number of KiB")
    }
}

impl Drop for Larder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- larder said:\n{}", self.output.text());
        }
    }
}

fn collect_files(root: &Path, folder: &Path, found: &mut BTreeMap<String, u64>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_files(root, &path, found);
        } else if let (Ok(name), Ok(about)) = (path.strip_prefix(root), entry.metadata()) {
            found.insert(name.to_string_lossy().into_owned(), about.len());
        }
    }
}
