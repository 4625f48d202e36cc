//! What the demo says: plain text of at most 100 columns, the same in a terminal and in a file. Pure: values in, text
//! out.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;

use super::client::{Pull, Step};
use super::image::{REPOSITORY, TAG};
use super::upstream::{Asked, BYTES_PER_SECOND, DELAY};

/// Who is where.
pub(super) struct Scene<'a> {
    pub(super) upstream: SocketAddr,
    pub(super) cache: SocketAddr,
    pub(super) admin: Option<SocketAddr>,
    pub(super) folder: &'a Path,
}

/// A pull and what it took upstream.
pub(super) struct Act<'a> {
    pub(super) title: &'a str,
    pub(super) pull: &'a Pull,
    pub(super) asked: &'a [Asked],
}

/// The opening.
pub(super) fn scene(scene: &Scene<'_>) -> String {
    let mut text = String::from("larder demo: everything runs on this machine, no network is used.\n\n");
    let delay = DELAY.as_millis();
    let rate = BYTES_PER_SECOND / 1_000_000;
    line(
        &mut text,
        format_args!(
            "  upstream   http://{:21}   wants tokens, {delay} ms away, {rate} MB/s",
            scene.upstream
        ),
    );
    line(
        &mut text,
        format_args!(
            "  larder     http://{:21}   empty, keeps its files in {}",
            scene.cache,
            scene.folder.display()
        ),
    );
    if let Some(admin) = scene.admin {
        line(&mut text, format_args!("  metrics    http://{admin}/metrics"));
    }
    text
}

/// One pull as a table, and what upstream was asked meanwhile.
pub(super) fn act(act: &Act<'_>) -> String {
    let mut text = format!(
        "\n{} pull of {REPOSITORY}:{TAG} for linux/amd64: the client asks larder\n\n",
        act.title
    );
    for step in &act.pull.steps {
        line(&mut text, format_args!("{}", step_line(step)));
    }
    text.push_str("\n  meanwhile larder asks upstream");
    if act.asked.is_empty() {
        text.push_str(": nothing\n");
    } else {
        text.push_str("\n\n");
    }
    for asked in act.asked {
        let method = asked.method.as_str();
        line(
            &mut text,
            format_args!(
                "    {method:4}  {:44}  {}",
                short(&asked.path),
                asked.status.as_u16()
            ),
        );
    }
    let size = size(act.pull.size_bytes());
    line(&mut text, format_args!("\n  {size} in {}", time(act.pull.took)));
    text
}

/// The comparison and what to try by hand.
pub(super) fn closing(first: &Pull, second: &Pull, cache: SocketAddr) -> String {
    let factor = first.took.as_secs_f64() / second.took.as_secs_f64().max(1e-6);
    let image = format!("{cache}/{REPOSITORY}:{TAG}");
    format!(
        "\nThe second pull was {factor:.0} times as fast: miss {}, hit {}. Every digest was right.\n\n\
         Try it by hand with what is installed here:\n\n  \
         curl -I http://{cache}/v2/{REPOSITORY}/manifests/{TAG}\n  \
         skopeo copy --src-tls-verify=false docker://{image} dir:/tmp/hello\n  \
         docker pull {image}\n  \
         ctr images pull --plain-http {image}\n",
        time(first.took),
        time(second.took),
    )
}

fn step_line(step: &Step) -> String {
    let size = if step.method == reqwest::Method::HEAD {
        String::new()
    } else {
        size(step.size_bytes)
    };
    format!(
        "    {:4}  {:44}  {}  {size:>9}  {:>8}   {}",
        step.method.as_str(),
        short(&step.path),
        step.status,
        time(step.took),
        provenance(&step.cache_status),
    )
    .trim_end()
    .to_owned()
}

/// What the header `Cache-Status` says, in words.
fn provenance(cache_status: &str) -> &str {
    let (_, facts) = cache_status.split_once("; ").unwrap_or_default();
    match facts {
        facts if facts.starts_with("fwd=miss") => "miss, now stored",
        facts if facts.starts_with("fwd=stale") => "hit, after asking whether the tag moved",
        facts => facts,
    }
}

/// A path with its digest cut to what tells it from others.
fn short(path: &str) -> String {
    match path.split_once(':') {
        Some((before, hex)) => format!("{before}:{}...", hex.get(..8).unwrap_or(hex)),
        None => path.to_owned(),
    }
}

fn size(size_bytes: u64) -> String {
    ByteSize::b(size_bytes).display().iec().to_string()
}

fn time(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1e3;
    if millis < 10.0 {
        format!("{millis:.1} ms")
    } else {
        format!("{millis:.0} ms")
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{arguments}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_keeps_eight_characters_of_its_digest() {
        let digest = "0123456789abcdef".repeat(4);
        assert_eq!(
            short(&format!("/v2/a/blobs/sha256:{digest}")),
            "/v2/a/blobs/sha256:01234567..."
        );
        assert_eq!(short("/v2/a/manifests/1.0"), "/v2/a/manifests/1.0");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(time(Duration::from_micros(1234)), "1.2 ms");
        assert_eq!(time(Duration::from_millis(812)), "812 ms");
    }
}
