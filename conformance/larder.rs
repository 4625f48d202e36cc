//! The program under test: the real binary as a child process, with a config file, a volume and two listeners.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::client::{Answer, Download};
use crate::upstream::TestUpstream;

/// No wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a larder is started with.
pub(crate) struct Builder {
    config: Value,
    environment: Vec<(String, String)>,
    folder: Arc<TempDir>,
    root: PathBuf,
    /// The size of a file system of its own for the volume.
    volume_bytes: Option<u64>,
}

/// A running larder.
pub(crate) struct Larder {
    child: Child,
    builder: Builder,
    output: Output,
    pub(crate) registry: String,
    pub(crate) admin: String,
}

/// What the child wrote, line by line, of both streams.
#[derive(Clone, Default)]
pub(crate) struct Output {
    lines: Arc<Mutex<Vec<String>>>,
    tasks: TaskTracker,
}

/// How a larder ended that would not serve.
pub(crate) struct Failure {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

impl Builder {
    /// A config as distribution's users write it: one upstream, a filesystem, Prometheus, and larder's short timeouts.
    pub(crate) fn new(upstream_url: &str) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a temporary folder"));
        let root = folder.path().join("volume");
        let config = json!({
            "version": "0.1",
            "log": {"level": "debug"},
            "storage": {"filesystem": {"rootdirectory": root}, "delete": {"enabled": true}},
            "http": {
                "addr": "127.0.0.1:0",
                "debug": {"addr": "127.0.0.1:0", "prometheus": {"enabled": true}},
                "draintimeout": "20s",
            },
            "proxy": {"remoteurl": upstream_url},
            "larder": {"timeouts": {"connect": "2s", "header": "5s", "idle": "1s"}},
        });
        Self {
            config,
            environment: Vec::new(),
            folder,
            root,
            volume_bytes: None,
        }
    }

    /// Sets the key at this dotted path.
    pub(crate) fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        let mut place = &mut self.config;
        for key in path.split('.') {
            if !place.is_object() {
                *place = Value::Object(Map::new());
            }
            place = &mut place[key];
        }
        *place = value.into();
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Serves this volume instead of an empty one.
    pub(crate) fn root(self, root: &Path) -> Self {
        let mut changed = self.set(
            "storage.filesystem.rootdirectory",
            root.to_string_lossy().as_ref(),
        );
        changed.root = root.to_owned();
        changed
    }

    /// Puts the volume on a file system of this size, in a mount namespace of the child.
    pub(crate) fn small_volume(mut self, bytes: u64) -> Self {
        self.volume_bytes = Some(bytes);
        self
    }

    /// A folder that lives as long as this larder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the config file is written.
    pub(crate) fn config_path(&self) -> PathBuf {
        self.folder.path().join("config.yml")
    }

    /// The config as block YAML.
    pub(crate) fn yaml(&self) -> String {
        let mut out = String::new();
        write_yaml(&mut out, &self.config, 0);
        out
    }

    /// Starts and waits until both listeners are named in the log.
    pub(crate) async fn start(self) -> Larder {
        std::fs::write(self.config_path(), self.yaml()).expect("the folder is ours");
        let (child, output) = self.spawn(&["serve"]);
        let mut larder = Larder {
            child,
            builder: self,
            output,
            registry: String::new(),
            admin: String::new(),
        };
        larder.wait_until_ready().await;
        larder
    }

    /// Starts with whatever config file `yaml` makes, and expects it to end by itself.
    pub(crate) async fn fail_with(self, yaml: &str) -> Failure {
        std::fs::write(self.config_path(), yaml).expect("the folder is ours");
        self.run(&["serve"]).await
    }

    /// As [`Builder::fail_with`], with the config as built.
    pub(crate) async fn fail(self) -> Failure {
        let yaml = self.yaml();
        self.fail_with(&yaml).await
    }

    /// Runs a command on the config file, to its end.
    pub(crate) async fn run(&self, command: &[&str]) -> Failure {
        let (mut child, output) = self.spawn(command);
        let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
        let status = ended.unwrap_or_else(|_| {
            panic!(
                "`larder {command:?}` still runs:
{}",
                output.text()
            )
        });
        let status = status.expect("a child can be waited for");
        output.tasks.wait().await;
        Failure {
            status,
            output: output.text(),
        }
    }

    fn spawn(&self, command: &[&str]) -> (Child, Output) {
        let binary = std::env::var_os("LARDER_BINARY").unwrap_or_else(|| env!("CARGO_BIN_EXE_larder").into());
        let mut child = match self.volume_bytes {
            None => Command::new(binary),
            Some(bytes) => self.on_small_volume(bytes, &binary),
        };
        let mut child = child
            .args(command)
            .arg(self.config_path())
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary was built by cargo");
        let output = Output::default();
        output.follow(child.stdout.take().expect("piped"));
        output.follow(child.stderr.take().expect("piped"));
        output.tasks.close();
        (child, output)
    }

    /// A command that becomes `binary` with a tmpfs over the root.
    fn on_small_volume(&self, bytes: u64, binary: &std::ffi::OsStr) -> Command {
        std::fs::create_dir_all(&self.root).expect("the folder is ours");
        let mount = format!("/bin/mount -t tmpfs -o size={bytes} tmpfs \"$0\" && exec \"$@\"");
        let mut command = Command::new("/usr/bin/unshare");
        command
            .args(["--map-root-user", "--mount", "/bin/sh", "-c", &mount])
            .arg(&self.root)
            .arg(binary);
        command
    }
}

impl Output {
    fn follow(&self, stream: impl AsyncRead + Unpin + Send + 'static) {
        let lines = Arc::clone(&self.lines);
        self.tasks.spawn(async move {
            let mut reader = BufReader::new(stream).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                lines.lock().push(line);
            }
        });
    }

    /// Everything so far.
    pub(crate) fn text(&self) -> String {
        self.lines.lock().join("\n")
    }

    fn listener(&self, name: &str) -> Option<String> {
        let lines = self.lines.lock();
        let wanted = format!("listener={name}");
        let line = lines
            .iter()
            .find(|line| line.contains("listening") && line.contains(&wanted))?;
        let address = line.split("addr=").nth(1)?.split_whitespace().next()?;
        Some(address.trim_matches('"').to_owned())
    }
}

impl Larder {
    /// Starts in front of `upstream`, with the usual config.
    pub(crate) async fn start(upstream: &TestUpstream) -> Self {
        Builder::new(&upstream.url()).start().await
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
        self.into_builder()
    }

    /// Stops in good order, and gives back what is needed to start again on the same volume.
    pub(crate) async fn stop(mut self) -> Builder {
        self.terminate();
        assert_eq!(self.exit_code().await, Some(0), "{}", self.output.text());
        self.into_builder()
    }

    /// Stops and starts again on the same volume.
    pub(crate) async fn restart(self) -> Self {
        self.stop().await.start().await
    }

    fn into_builder(self) -> Builder {
        let builder = &self.builder;
        Builder {
            config: builder.config.clone(),
            environment: builder.environment.clone(),
            folder: Arc::clone(&builder.folder),
            root: builder.root.clone(),
            volume_bytes: builder.volume_bytes,
        }
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
        self.builder.folder.path()
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

    /// The most memory that was ever resident, and what is now (`VmHWM`, `VmRSS`), in KiB.
    pub(crate) fn resident_kib(&self) -> (u64, u64) {
        let pid = self.child.id().expect("larder still runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
        let field = |name: &str| {
            let line = status
                .lines()
                .find(|line| line.starts_with(name))
                .expect("a field of every process");
            line.split_whitespace()
                .nth(1)
                .and_then(|number| number.parse().ok())
                .expect("a number of KiB")
        };
        (field("VmHWM:"), field("VmRSS:"))
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

/// Prints JSON as block YAML, strings in double quotes.
fn write_yaml(out: &mut String, value: &Value, depth: usize) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                out.extend(["\n", &indent, key, ": "]);
                write_yaml(out, value, depth + 1);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                out.extend(["\n", &indent, "- "]);
                write_yaml(out, value, depth + 1);
            }
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}
