//! How larder is started: a config file made of keys, an environment, a volume, and the child process.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio_util::task::TaskTracker;

use crate::larder::{Larder, PATIENCE};

/// What a larder is started with.
#[derive(Clone)]
pub(crate) struct Builder {
    config: Value,
    environment: Vec<(String, String)>,
    folder: Arc<TempDir>,
    pub(crate) root: PathBuf,
    /// The size of a file system of its own for the volume.
    pub(crate) volume_bytes: Option<u64>,
}

/// How a larder ended that would not serve.
pub(crate) struct Failure {
    pub(crate) status: ExitStatus,
    pub(crate) output: String,
}

/// What the child wrote, line by line, of both streams.
#[derive(Clone, Default)]
pub(crate) struct Output {
    lines: Arc<Mutex<Vec<String>>>,
    tasks: TaskTracker,
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
        Larder::ready(child, output, self).await
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

    /// The address that a ready listener of this name logged.
    pub(crate) fn listener(&self, name: &str) -> Option<String> {
        let lines = self.lines.lock();
        let wanted = format!("listener={name}");
        let line = lines
            .iter()
            .find(|line| line.contains("listening") && line.contains(&wanted))?;
        let address = line.split("addr=").nth(1)?.split_whitespace().next()?;
        Some(address.trim_matches('"').to_owned())
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
