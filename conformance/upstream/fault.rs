//! What can go wrong upstream, as rules: which requests, what happens to them, how many times.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The listeners of a [`TestUpstream`](super::TestUpstream), each on a port of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The registry itself.
    Registry,
    /// The token server.
    Token,
    /// Where redirected blobs come from.
    Cdn,
}

/// How a body ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The connection is closed in good order.
    Fin,
    /// The connection is reset.
    Rst,
    /// Nothing more is sent, nothing is closed.
    Stall,
}

/// Holds a body at some byte until the test opens it, and tells the test when it got there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    reached: CancellationToken,
    opened: CancellationToken,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Waits, at most 20 seconds, until a body stands before this gate.
    pub(crate) async fn reached(&self) {
        let wait = tokio::time::timeout(Duration::from_secs(20), self.reached.cancelled());
        wait.await.expect("no body came to the gate");
    }

    /// Lets everything through, now and later.
    pub(crate) fn open(&self) {
        self.opened.cancel();
    }

    pub(super) async fn pass(&self) {
        self.reached.cancel();
        self.opened.cancelled().await;
    }
}

/// Where a redirected blob goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// An absolute URL on the second listener.
    Cdn,
    /// A path on the registry itself.
    Relative,
    /// `//host:port/path`, on the second listener.
    SchemeRelative,
    /// A hop over the registry before the second listener.
    Chain,
}

/// One thing that goes wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Answers this instead: status, headers, body.
    Status(u16, Vec<(&'static str, String)>, String),
    /// Waits before the status line.
    Delay(Duration),
    /// Waits for the gate before the status line.
    HoldHeaders(Gate),
    /// Accepts and never answers.
    BlackHole,
    /// Closes (or resets) the connection instead of answering.
    Drop(Cut),
    /// Ends the body after this many bytes of this answer.
    CutAt(u64, Cut),
    /// Holds the body after this many bytes of this answer.
    HoldAt(u64, Gate),
    /// Sends so many body bytes per second.
    Rate(u64),
    /// Flips the byte at this offset of the blob.
    WrongByte(u64),
    /// Leaves out so many bytes at the end, with a `Content-Length` that fits.
    ShorterBy(u64),
    /// Appends so many zero bytes, with a `Content-Length` that fits.
    LongerBy(u64),
    /// Sends no `Content-Length`; the end of the connection ends the body.
    NoContentLength,
    /// Sends the body in chunks.
    Chunked,
    /// Sets a header, or with `None` leaves it out.
    Header(&'static str, Option<String>),
    /// Compresses the body: always, or only for those who accept it.
    Gzip { only_if_accepted: bool },
    /// A login page with status 200.
    Html,
    /// Redirects blobs with this status.
    Redirect(u16, Redirect),
    /// Answers 200 from the start although a range was asked for.
    IgnoreRange,
    /// Sends other content under the same name.
    Body(Vec<u8>),
}

/// Which requests a rule is about.
#[derive(Clone, Debug)]
pub(crate) struct Matcher {
    role: Option<Role>,
    method: Option<&'static str>,
    path: String,
    range: Option<bool>,
}

/// Requests whose path contains `path`, on any listener and with any method.
pub(crate) fn on(path: &str) -> Matcher {
    Matcher {
        role: None,
        method: None,
        path: path.to_owned(),
        range: None,
    }
}

impl Matcher {
    pub(crate) fn method(mut self, method: &'static str) -> Self {
        self.method = Some(method);
        self
    }

    pub(crate) fn at(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Only requests with a `Range` (or, with `false`, only those without).
    pub(crate) fn ranged(mut self, is_ranged: bool) -> Self {
        self.range = Some(is_ranged);
        self
    }

    fn matches(&self, role: Role, method: &str, path: &str, is_ranged: bool) -> bool {
        self.role.is_none_or(|wanted| wanted == role)
            && self.method.is_none_or(|wanted| wanted == method)
            && self.range.is_none_or(|wanted| wanted == is_ranged)
            && path.contains(&self.path)
    }
}

/// A matcher, a fault, and how often it still happens.
#[derive(Debug)]
struct Rule {
    matcher: Matcher,
    fault: Fault,
    skip: u32,
    left: Option<u32>,
}

/// The rules in force. Every rule that matches a request applies to it, in the order they were given.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) fn add(&mut self, matcher: Matcher, fault: Fault, skip: u32, times: Option<u32>) {
        self.0.push(Rule {
            matcher,
            fault,
            skip,
            left: times,
        });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The faults of one request; uses them up.
    pub(super) fn take(&mut self, role: Role, method: &str, path: &str, is_ranged: bool) -> Vec<Fault> {
        let mut faults = Vec::new();
        for rule in &mut self.0 {
            if rule.left == Some(0) || !rule.matcher.matches(role, method, path, is_ranged) {
                continue;
            }
            if rule.skip > 0 {
                rule.skip -= 1;
                continue;
            }
            rule.left = rule.left.map(|left| left - 1);
            faults.push(rule.fault.clone());
        }
        faults
    }
}
