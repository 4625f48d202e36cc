//! A client that sees everything: one request per connection, the bytes as they came, and how the body ended.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::larder::PATIENCE;

/// How the connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fin,
    Rst,
}

/// An answer, read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The body has the length, or the last chunk, that was announced.
    pub(crate) is_complete: bool,
    pub(crate) end: End,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_slice(&self.body);
        parsed.unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }

    /// The code of the first OCI error; checks the form of the whole.
    pub(crate) fn error_code(&self) -> String {
        assert_eq!(
            self.header("content-type"),
            Some("application/json"),
            "{}",
            self.text()
        );
        let value = self.json();
        assert!(value["errors"][0]["message"].is_string(), "{value}");
        value["errors"][0]["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Panics unless this is a whole 200 with this body.
    #[track_caller]
    pub(crate) fn is_whole(&self, body: &[u8]) {
        assert_eq!(self.status, 200, "{}", self.text());
        assert!(
            self.is_complete,
            "short: {} of {} bytes, ended by {:?}",
            self.body.len(),
            body.len(),
            self.end
        );
        assert!(
            self.body == body,
            "{} bytes that are not the right ones",
            self.body.len()
        );
    }
}

/// An answer whose head is read, and whose body is not, yet.
pub(crate) struct Download {
    stream: TcpStream,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    is_bodiless: bool,
    body: Vec<u8>,
}

impl Download {
    /// Sends a request to `host:port` and reads the head of the answer.
    pub(crate) async fn open(
        host: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> io::Result<Self> {
        Self::open_with(host, method, path, headers, None).await
    }

    /// As [`Download::open`], with a receive buffer of a few KiB, so that reading slowly is felt at once.
    pub(crate) async fn open_narrow(host: &str, path: &str) -> io::Result<Self> {
        Self::open_with(host, "GET", path, &[], Some(4096)).await
    }

    async fn open_with(
        host: &str,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        receive_bytes: Option<u32>,
    ) -> io::Result<Self> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        request.extend(headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
        request.push_str("\r\n");
        Self::send(host, request.as_bytes(), method == "HEAD", receive_bytes).await
    }

    /// Sends exactly these bytes and reads the head of the answer.
    pub(crate) async fn send(
        host: &str,
        request: &[u8],
        is_head: bool,
        receive_bytes: Option<u32>,
    ) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = receive_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        let address = host.parse().map_err(io::Error::other)?;
        let mut stream = bounded(socket.connect(address)).await?;
        stream.write_all(request).await?;
        let mut seen = Vec::new();
        let end = loop {
            if let Some(at) = seen.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            let mut piece = [0; 1024];
            match bounded(stream.read(&mut piece)).await? {
                0 => {
                    return Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "closed before the head was whole",
                    ));
                }
                count => seen.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
        };
        let body = seen.split_off(end + 4);
        let head = String::from_utf8_lossy(&seen).into_owned();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("not a status line"))?;
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Ok(Self {
            stream,
            status,
            headers,
            is_bodiless: is_head || status == 304,
            body,
        })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Reads until `count` body bytes are here in all; for answers with a `Content-Length`.
    pub(crate) async fn read_to(&mut self, count: u64) -> &[u8] {
        while (self.body.len() as u64) < count {
            let mut piece = vec![0; 64 * 1024];
            let read = bounded(self.stream.read(&mut piece))
                .await
                .expect("a body that goes on");
            assert!(read > 0, "the body ended at {} of {count} bytes", self.body.len());
            self.body.extend_from_slice(piece.get(..read).unwrap_or_default());
        }
        &self.body
    }

    /// Reads and drops the body, comparing nothing; tells how many bytes came.
    pub(crate) async fn drain(mut self) -> u64 {
        let mut total = self.body.len() as u64;
        let mut piece = vec![0; 256 * 1024];
        while let Ok(count @ 1..) = bounded(self.stream.read(&mut piece)).await {
            total += count as u64;
        }
        total
    }

    /// Reads to the end.
    pub(crate) async fn rest(mut self) -> Answer {
        let mut piece = vec![0; 64 * 1024];
        let end = loop {
            match bounded(self.stream.read(&mut piece)).await {
                Ok(0) => break End::Fin,
                Ok(count) => self
                    .body
                    .extend_from_slice(piece.get(..count).unwrap_or_default()),
                Err(_) => break End::Rst,
            }
        };
        let is_chunked = find(&self.headers, "transfer-encoding").is_some();
        let announced = find(&self.headers, "content-length").and_then(|length| length.parse::<usize>().ok());
        let (body, is_complete) = if self.is_bodiless {
            let is_empty = self.body.is_empty();
            (self.body, is_empty)
        } else if is_chunked {
            unchunk(&self.body)
        } else {
            let is_complete = announced.is_none_or(|length| length == self.body.len());
            (self.body, is_complete)
        };
        Answer {
            status: self.status,
            headers: self.headers,
            body,
            is_complete,
            end,
        }
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

/// The content of a chunked body, and whether its last chunk was there.
fn unchunk(mut wire: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(at) = wire.windows(2).position(|two| two == b"\r\n") {
        let (line, rest) = wire.split_at(at);
        let size = std::str::from_utf8(line)
            .ok()
            .and_then(|line| usize::from_str_radix(line, 16).ok());
        let (Some(size), rest) = (size, rest.get(2..).unwrap_or_default()) else {
            return (body, false);
        };
        if size == 0 {
            return (body, true);
        }
        body.extend_from_slice(rest.get(..size.min(rest.len())).unwrap_or_default());
        wire = rest.get(size + 2..).unwrap_or_default();
    }
    (body, false)
}

async fn bounded<T>(action: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let outcome = tokio::time::timeout(PATIENCE + Duration::from_secs(10), action).await;
    outcome.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "larder is silent"))?
}

/// The path of a blob.
pub(crate) fn blob_path(repository: &str, digest: &str) -> String {
    format!("/v2/{repository}/blobs/{digest}")
}

/// The path of a manifest, by tag or digest.
pub(crate) fn manifest_path(repository: &str, reference: &str) -> String {
    format!("/v2/{repository}/manifests/{reference}")
}
