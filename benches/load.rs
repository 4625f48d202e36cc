//! The load generator of the benchmark, and its upstream. Built as an example so that its path is known.
//!
//! ```text
//! load get URL CONNECTIONS SECONDS     the same body again and again      -> bytes seconds requests
//! load cold URL CLIENTS                one body for everyone at once      -> first-p50 first-p99 done-p50 done-max short
//! load upstream BYTES_PER_SECOND NAME:SIZE...   a registry with one image; every body runs at that rate
//! ```
//!
//! Bodies are taken off the socket with `MSG_TRUNC`, which does not copy them, so that the client costs little beside the
//! server it measures. Threads and blocking sockets: there are at most some dozens.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "a tool that prints what it measured with the real clock"
)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use larder::oci::{Algorithm, Digest};
use rustix::net::RecvFlags;

/// No read waits longer.
const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["get", url, connections, seconds] => get(
            url,
            connections.parse()?,
            Duration::from_secs_f64(seconds.parse()?),
        ),
        ["cold", url, clients] => cold(url, clients.parse()?),
        ["upstream", rate, blobs @ ..] => upstream(rate.parse()?, blobs),
        _ => bail!("usage: load get URL CONNECTIONS SECONDS | cold URL CLIENTS | upstream RATE NAME:SIZE..."),
    }
}

/// What is asked for, and of whom.
#[derive(Clone)]
struct Target {
    address: SocketAddr,
    request: Arc<[u8]>,
}

impl Target {
    fn parse(url: &str) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("only http:// is spoken")?;
        let (host, path) = rest.split_at(rest.find('/').context("the URL has no path")?);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n");
        Ok(Self {
            address: host.parse()?,
            request: request.into_bytes().into(),
        })
    }
}

/// One connection, which may carry several answers one after the other.
struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            socket,
            buffer: vec![0; 1 << 20],
        })
    }

    /// Sends the request and reads until the head and the first byte of the body are here: what is left of the body, and
    /// how much of it came with the head.
    fn ask(&mut self, target: &Target) -> anyhow::Result<(u64, u64)> {
        self.socket.write_all(&target.request)?;
        let mut filled = 0;
        let mut head = None;
        loop {
            let free = self.buffer.get_mut(filled..).context("the head is too long")?;
            let count = self.socket.read(free)?;
            ensure!(count > 0, "closed before the first byte");
            filled += count;
            let read = self.buffer.get(..filled).unwrap_or_default();
            if head.is_none() {
                head = read
                    .windows(4)
                    .position(|four| four == b"\r\n\r\n")
                    .map(|end| end + 4);
            }
            let Some(end) = head else { continue };
            if filled == end {
                continue;
            }
            let length = content_length(read.get(..end).unwrap_or_default())?;
            let here = (filled - end) as u64;
            return Ok((length.saturating_sub(here), here));
        }
    }

    /// Throws away up to `left` bytes of a body until `deadline`; how many there were.
    fn drain(&mut self, left: u64, deadline: Option<Instant>) -> io::Result<u64> {
        let mut drained = 0;
        while drained < left && deadline.is_none_or(|deadline| Instant::now() < deadline) {
            let want = usize::try_from(left - drained)
                .unwrap_or(usize::MAX)
                .min(self.buffer.len());
            let Some(buffer) = self.buffer.get_mut(..want) else {
                break;
            };
            let (_, count) = rustix::net::recv(&self.socket, buffer, RecvFlags::TRUNC)?;
            if count == 0 {
                break;
            }
            drained += count as u64;
        }
        Ok(drained)
    }
}

fn content_length(head: &[u8]) -> anyhow::Result<u64> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    ensure!(status.contains(" 200 "), "answered `{status}`");
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    Ok(length.context("the answer has no length")?.1.trim().parse()?)
}

fn get(url: &str, connections: usize, time: Duration) -> anyhow::Result<()> {
    let target = Target::parse(url)?;
    let begin = Instant::now();
    let deadline = begin + time;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let target = target.clone();
            thread::spawn(move || repeat(&target, deadline))
        })
        .collect();
    let (mut bytes, mut requests) = (0, 0);
    for thread in threads {
        let (more_bytes, more_requests) = thread
            .join()
            .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        bytes += more_bytes;
        requests += more_requests;
    }
    println!("{bytes} {:.4} {requests}", begin.elapsed().as_secs_f64());
    Ok(())
}

fn repeat(target: &Target, deadline: Instant) -> anyhow::Result<(u64, u64)> {
    let mut connection = Connection::open(target.address)?;
    let (mut bytes, mut requests) = (0, 0);
    while Instant::now() < deadline {
        let (left, here) = connection.ask(target)?;
        let drained = connection.drain(left, Some(deadline))?;
        ensure!(
            drained == left || Instant::now() >= deadline,
            "a body ended short"
        );
        bytes += here + drained;
        requests += 1;
    }
    Ok((bytes, requests))
}

fn cold(url: &str, clients: usize) -> anyhow::Result<()> {
    let target = Target::parse(url)?;
    let barrier = Arc::new(Barrier::new(clients));
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let (target, barrier) = (target.clone(), Arc::clone(&barrier));
            thread::spawn(move || once(&target, &barrier))
        })
        .collect();
    let (mut first, mut done, mut short) = (Vec::new(), Vec::new(), 0);
    for thread in threads {
        match thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))? {
            Ok((to_first, to_done)) => {
                first.push(to_first);
                done.push(to_done);
            }
            Err(error) => {
                eprintln!("{error:#}");
                short += 1;
            }
        }
    }
    let (first_p50, first_p99) = (percentile(&mut first, 50), percentile(&mut first, 99));
    let (done_p50, done_max) = (percentile(&mut done, 50), percentile(&mut done, 100));
    println!("{first_p50:.4} {first_p99:.4} {done_p50:.4} {done_max:.4} {short}");
    Ok(())
}

fn once(target: &Target, barrier: &Barrier) -> anyhow::Result<(f64, f64)> {
    let connection = Connection::open(target.address);
    barrier.wait();
    let mut connection = connection?;
    let begin = Instant::now();
    let (left, _) = connection.ask(target)?;
    let first = begin.elapsed().as_secs_f64();
    let drained = connection.drain(left, None)?;
    ensure!(drained == left, "{} bytes are missing", left - drained);
    Ok((first, begin.elapsed().as_secs_f64()))
}

/// The nearest-rank percentile; not a number when there is nothing.
fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).max(1) - 1;
    values.get(rank).copied().unwrap_or(f64::NAN)
}

/// What the upstream has, and what it sent.
struct Registry {
    content: HashMap<String, (String, Vec<u8>)>,
    rate: f64,
    sent: AtomicU64,
    requests: AtomicU64,
}

fn upstream(rate: f64, blobs: &[&str]) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut content = HashMap::new();
    let mut layers = Vec::new();
    let mut report = format!("listening {}\n", listener.local_addr()?);
    for blob in blobs {
        let (name, size) = blob.split_once(':').context("a blob is NAME:SIZE")?;
        let bytes = noise(name, size.parse()?);
        let digest = Digest::of(Algorithm::Sha256, &bytes).to_string();
        let layer = r#"{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"DIGEST","size":SIZE}"#;
        layers.push(layer.replace("DIGEST", &digest).replace("SIZE", size));
        writeln!(report, "{name} {digest}")?;
        content.insert(
            format!("blobs/{digest}"),
            ("application/octet-stream".to_owned(), bytes),
        );
    }
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let (config, layers) = (layers.first().context("no blob")?, layers.join(","));
    let manifest =
        format!(r#"{{"schemaVersion":2,"mediaType":"{media_type}","config":{config},"layers":[{layers}]}}"#)
            .into_bytes();
    let digest = Digest::of(Algorithm::Sha256, &manifest).to_string();
    writeln!(report, "manifest {digest}")?;
    for name in ["1.0", &digest] {
        content.insert(
            format!("manifests/{name}"),
            (media_type.to_owned(), manifest.clone()),
        );
    }
    content.insert(String::new(), ("application/json".to_owned(), b"{}".to_vec()));
    let registry = Arc::new(Registry {
        content,
        rate,
        sent: AtomicU64::new(0),
        requests: AtomicU64::new(0),
    });
    print!("{report}");
    io::stdout().flush()?;
    for socket in listener.incoming() {
        let registry = Arc::clone(&registry);
        thread::spawn(move || {
            // A client that leaves is no news.
            let _ = socket.and_then(|socket| registry.serve(&socket));
        });
    }
    Ok(())
}

/// Bytes that do not compress, the same for the same name (xorshift).
fn noise(name: &str, size: usize) -> Vec<u8> {
    let mut state = name.bytes().fold(0x9E37_79B9_7F4A_7C15_u64, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3) | 1
    });
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

impl Registry {
    fn serve(&self, mut socket: &TcpStream) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let mut reader = BufReader::new(socket);
        loop {
            let mut request = String::new();
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
            let mut header = String::new();
            while reader.read_line(&mut header)? > 2 {
                header.clear();
            }
            let mut words = request.split_whitespace();
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if path == "/stats" {
                let text = format!(
                    "{} {}\n",
                    self.sent.load(Ordering::Relaxed),
                    self.requests.load(Ordering::Relaxed)
                );
                socket.write_all(head(200, "text/plain", "", text.len()).as_bytes())?;
                socket.write_all(text.as_bytes())?;
                continue;
            }
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.answer(socket, method, path)?;
        }
    }

    fn answer(&self, mut socket: &TcpStream, method: &str, path: &str) -> io::Result<()> {
        let path = path.split('?').next().unwrap_or_default();
        let name = path
            .strip_prefix("/v2/")
            .map(|rest| rest.strip_prefix("bench/image/").unwrap_or(rest));
        let Some((media_type, bytes)) = name.and_then(|name| self.content.get(name)) else {
            return socket.write_all(head(404, "application/json", "", 0).as_bytes());
        };
        let digest = match name.and_then(|name| name.strip_prefix("blobs/")) {
            Some(digest) => digest.to_owned(),
            None => Digest::of(Algorithm::Sha256, bytes).to_string(),
        };
        socket.write_all(head(200, media_type, &digest, bytes.len()).as_bytes())?;
        if method == "HEAD" {
            return Ok(());
        }
        let begin = Instant::now();
        let mut sent = Duration::ZERO;
        for piece in bytes.chunks(256 << 10) {
            thread::sleep(sent.saturating_sub(begin.elapsed()));
            socket.write_all(piece)?;
            self.sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            #[expect(clippy::cast_precision_loss, reason = "a piece is small")]
            let time = piece.len() as f64 / self.rate;
            sent += Duration::from_secs_f64(time);
        }
        Ok(())
    }
}

fn head(status: u16, media_type: &str, digest: &str, length: usize) -> String {
    let digest = if digest.is_empty() {
        String::new()
    } else {
        format!("Docker-Content-Digest: {digest}\r\n")
    };
    format!(
        "HTTP/1.1 {status} OK\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n{digest}\
         Docker-Distribution-Api-Version: registry/2.0\r\n\r\n"
    )
}
