//! Byte ranges (RFC 9110, 14): reading the header, resolving it against a size, and the shape of multipart answers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use crate::registry::RangeSpec;

/// The most ranges in one request; zstd:chunked clients send up to 1024.
pub const MAX_RANGES: usize = 1024;

/// What a request for ranges comes to once the size is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// All of it, status 200.
    Whole,
    /// One range, status 206.
    Single(Range<u64>),
    /// Several, status 206 and `multipart/byteranges`.
    Multi(Vec<Range<u64>>),
    /// None that exists, status 416.
    Unsatisfiable,
}

/// Reads a `Range` header. `None` when it is to be ignored: another unit, wrong syntax, too many ranges.
///
/// `500-0` is kept although RFC 9110 calls it invalid: the conformance suite wants 416 for it.
pub fn parse(header: &str) -> Option<Vec<RangeSpec>> {
    let (unit, list) = header.trim().split_once('=')?;
    if !unit.trim_end().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let mut specs = Vec::new();
    for text in list.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        if specs.len() == MAX_RANGES {
            return None;
        }
        specs.push(parse_spec(text)?);
    }
    (!specs.is_empty()).then_some(specs)
}

fn parse_spec(text: &str) -> Option<RangeSpec> {
    let (first, last) = text.split_once('-')?;
    match (first, last) {
        ("", last) => Some(RangeSpec::Suffix(parse_number(last)?)),
        (first, "") => Some(RangeSpec::From(parse_number(first)?)),
        (first, last) => Some(RangeSpec::FromTo(parse_number(first)?, parse_number(last)?)),
    }
}

/// Digits only; what is too large for 64 bits is as good as the largest number.
fn parse_number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Resolves ranges against a size, keeping the client's order.
///
/// What would move more bytes than the whole is answered with the whole; so is an empty blob, as Go's servers do.
pub fn plan(specs: &[RangeSpec], size_bytes: u64) -> Plan {
    if size_bytes == 0 {
        return Plan::Whole;
    }
    let ranges: Vec<Range<u64>> = specs
        .iter()
        .filter_map(|spec| resolve(spec, size_bytes))
        .collect();
    let sum = ranges
        .iter()
        .fold(0_u64, |sum, range| sum.saturating_add(range.end - range.start));
    match ranges.as_slice() {
        [] => Plan::Unsatisfiable,
        [range] => Plan::Single(range.clone()),
        _ if sum > size_bytes => Plan::Whole,
        _ => Plan::Multi(ranges),
    }
}

fn resolve(spec: &RangeSpec, size_bytes: u64) -> Option<Range<u64>> {
    let range = match *spec {
        RangeSpec::FromTo(first, last) if first > last => return None,
        RangeSpec::FromTo(first, last) => first..last.saturating_add(1).min(size_bytes),
        RangeSpec::From(first) => first..size_bytes,
        RangeSpec::Suffix(length) => size_bytes.saturating_sub(length)..size_bytes,
    };
    (range.start < range.end).then_some(range)
}

/// The value of `Content-Range` for a range of a blob.
pub fn content_range(range: &Range<u64>, size_bytes: u64) -> String {
    format!(
        "bytes {}-{}/{size_bytes}",
        range.start,
        range.end.saturating_sub(1)
    )
}

/// The frame around the parts of a `multipart/byteranges` body (RFC 9110, 14.6).
#[derive(Debug, Clone)]
pub struct Multipart {
    boundary: String,
    media_type: &'static str,
    size_bytes: u64,
}

impl Multipart {
    /// A frame for parts of a blob of `size_bytes`, with a boundary of its own.
    pub fn new(media_type: &'static str, size_bytes: u64) -> Self {
        let random = || RandomState::new().build_hasher().finish();
        Self {
            boundary: format!("{:016x}{:016x}", random(), random()),
            media_type,
            size_bytes,
        }
    }

    /// The value of `Content-Type`.
    pub fn content_type(&self) -> String {
        format!("multipart/byteranges; boundary={}", self.boundary)
    }

    /// What stands before the bytes of a part; `index` counts from 0.
    pub fn head(&self, index: usize, range: &Range<u64>) -> String {
        let line_break = if index == 0 { "" } else { "\r\n" };
        format!(
            "{line_break}--{}\r\nContent-Range: {}\r\nContent-Type: {}\r\n\r\n",
            self.boundary,
            content_range(range, self.size_bytes),
            self.media_type
        )
    }

    /// What stands after the last part.
    pub fn end(&self) -> String {
        format!("\r\n--{}--\r\n", self.boundary)
    }

    /// The length of the whole body.
    pub fn length(&self, ranges: &[Range<u64>]) -> u64 {
        let parts: u64 = ranges
            .iter()
            .enumerate()
            .map(|(index, range)| self.head(index, range).len() as u64 + (range.end - range.start))
            .sum();
        parts + self.end().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_are_read_strictly() {
        use RangeSpec::{From, FromTo, Suffix};
        let cases = [
            ("bytes=0-0", Some(vec![FromTo(0, 0)])),
            ("Bytes=500-", Some(vec![From(500)])),
            ("bytes=-5", Some(vec![Suffix(5)])),
            (
                "bytes= 0-1 , 2-3 ,, -4",
                Some(vec![FromTo(0, 1), FromTo(2, 3), Suffix(4)]),
            ),
            ("bytes=500-0", Some(vec![FromTo(500, 0)])),
            ("bytes=0-99999999999999999999999", Some(vec![FromTo(0, u64::MAX)])),
            ("bytes=", None),
            ("bytes=,", None),
            ("bytes=-", None),
            ("bytes=a-b", None),
            ("bytes=1", None),
            ("bytes=+1-2", None),
            ("bytes=1-2-3", None),
            ("bytes=0-1,x", None),
            ("lines=0-1", None),
            ("bytes", None),
        ];
        for (header, expected) in cases {
            assert_eq!(parse(header), expected, "{header}");
        }
        assert_eq!(
            parse(&format!("bytes={}", "0-0,".repeat(1024))).map(|s| s.len()),
            Some(1024)
        );
        assert_eq!(parse(&format!("bytes={}", "0-0,".repeat(1025))), None);
    }

    #[test]
    fn ranges_are_clamped_dropped_and_bounded() {
        let cases = [
            ("bytes=500-1499", 2048, Plan::Single(500..1500)),
            ("bytes=500-", 2048, Plan::Single(500..2048)),
            ("bytes=-500", 2048, Plan::Single(1548..2048)),
            ("bytes=-5000", 2048, Plan::Single(0..2048)),
            ("bytes=2000-5000", 2048, Plan::Single(2000..2048)),
            ("bytes=500-0", 2048, Plan::Unsatisfiable),
            ("bytes=5000-10000", 2048, Plan::Unsatisfiable),
            ("bytes=2048-", 2048, Plan::Unsatisfiable),
            ("bytes=-0", 2048, Plan::Unsatisfiable),
            ("bytes=0-", 0, Plan::Whole),
            ("bytes=0-9,20-29", 2048, Plan::Multi(vec![0..10, 20..30])),
            ("bytes=20-29,0-9", 2048, Plan::Multi(vec![20..30, 0..10])),
            ("bytes=0-9,9000-", 2048, Plan::Single(0..10)),
            ("bytes=0-,0-", 2048, Plan::Whole),
        ];
        for (header, size, expected) in cases {
            assert_eq!(
                plan(&parse(header).unwrap(), size),
                expected,
                "{header} of {size}"
            );
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "(bytes=)?[0-9a-z,= -]{0,40}") {
            let _ = parse(&text);
        }

        #[test]
        fn planned_ranges_lie_within_the_blob(
            pairs in proptest::collection::vec((0_u64..3000, 0_u64..3000), 1..8),
            size in 0_u64..2500,
        ) {
            let specs: Vec<_> = pairs.iter().map(|(a, b)| RangeSpec::FromTo(*a, *b)).collect();
            let ranges = match plan(&specs, size) {
                Plan::Single(range) => vec![range],
                Plan::Multi(ranges) => ranges,
                Plan::Whole | Plan::Unsatisfiable => vec![],
            };
            prop_assert!(ranges.iter().all(|r| r.start < r.end && r.end <= size));
            prop_assert!(ranges.len() < 2 || ranges.iter().map(|r| r.end - r.start).sum::<u64>() <= size);
        }

        #[test]
        fn the_length_of_a_multipart_body_is_exact(
            ranges in proptest::collection::vec((0_u64..500, 1_u64..100).prop_map(|(a, n)| a..a + n), 2..6),
        ) {
            let frame = Multipart::new("application/octet-stream", 1000);
            let mut body = String::new();
            for (index, range) in ranges.iter().enumerate() {
                body.push_str(&frame.head(index, range));
                body.extend(range.clone().map(|_| 'x'));
            }
            body.push_str(&frame.end());
            prop_assert_eq!(frame.length(&ranges), body.len() as u64);
        }
    }
}
