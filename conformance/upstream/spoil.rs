//! What the faults do to an answer before it is sent.

use super::content::Blob;
use super::fault::{Fault, Redirect};
use super::gzip::gzip;
use super::registry::{Registry, SIGNATURE};
use super::wire::{Course, Framing, Reply, Request};

/// What a captive portal serves instead of anything.
const LOGIN_PAGE: &str = "<html><body>Please log in</body></html>";

/// Applies a fault to an answer.
pub(super) fn spoil(reply: &mut Reply, fault: &Fault, request: &Request) {
    match fault {
        Fault::Status(status, headers, body) => {
            *reply = Reply::new(*status, "application/json", Blob::of(body.clone()));
            for (name, value) in headers {
                reply.set(name, Some(value.clone()));
            }
        }
        Fault::Html => *reply = Reply::new(200, "text/html", Blob::of(LOGIN_PAGE)),
        Fault::Body(bytes) => {
            reply.body = Blob::of(bytes.clone());
            (reply.start, reply.end) = (0, reply.body.len());
        }
        Fault::CutAt(at, how) => reply.course.cut = Some((*at, *how)),
        Fault::HoldAt(at, gate) => reply.course.holds.push((*at, gate.clone())),
        Fault::Rate(rate) => reply.course.bytes_per_second = Some(*rate),
        Fault::WrongByte(at) => reply.course.wrong_byte = Some(*at),
        Fault::ShorterBy(bytes) => reply.end = reply.end.saturating_sub(*bytes).max(reply.start),
        Fault::LongerBy(bytes) => {
            let mut longer = reply.body.read(reply.start..reply.end);
            longer.resize(longer.len() + usize::try_from(*bytes).expect("a test's size"), 0);
            reply.body = Blob::of(longer);
            (reply.start, reply.end) = (0, reply.body.len());
        }
        Fault::NoContentLength => reply.framing = Framing::Close,
        Fault::Chunked => reply.framing = Framing::Chunked,
        Fault::Header(name, value) => reply.set(name, value.clone()),
        Fault::Gzip { only_if_accepted } => {
            let is_accepted = request
                .header("accept-encoding")
                .is_some_and(|accepted| accepted.contains("gzip"));
            if !only_if_accepted || is_accepted {
                reply.body = Blob::of(gzip(&reply.body.read(reply.start..reply.end)));
                (reply.start, reply.end) = (0, reply.body.len());
                reply.set("Content-Encoding", Some("gzip".to_owned()));
            }
        }
        _ => {}
    }
}

/// The redirect of a blob, if this is one.
pub(super) fn redirect(registry: &Registry, status: u16, to: Redirect, request: &Request) -> Option<Reply> {
    let (name, digest) = request.path.strip_prefix("/v2/")?.rsplit_once("/blobs/")?;
    let path = format!("/signed/{name}/{digest}?{SIGNATURE}");
    let location = match to {
        Redirect::Cdn => format!("{}{path}", registry.cdn_origin),
        Redirect::Relative => path,
        Redirect::SchemeRelative => format!("{}{path}", registry.cdn_origin.split_once(':')?.1),
        Redirect::Chain if request.query.contains("hop=2") => format!("{}{path}", registry.cdn_origin),
        Redirect::Chain => format!("{}?hop=2", request.path),
    };
    let mut reply = Reply::new(status, "text/html", Blob::of("<a href=\"elsewhere\">moved</a>"));
    reply.set("Location", Some(location));
    reply.course = Course::default();
    Some(reply)
}
