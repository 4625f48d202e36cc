//! How a piece of text becomes a duration, a switch, a number or a size. Pure, and as Go's yaml and
//! `time.ParseDuration` read them, because the same file must mean the same to distribution.

use std::time::Duration;

use bytesize::ByteSize;

use super::types::SizeLimit;

/// A span of time as Go has it: nanoseconds, which may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GoDuration(pub(crate) i64);

impl GoDuration {
    /// The span, or `None` when it is negative.
    pub(crate) fn to_std(self) -> Option<Duration> {
        u64::try_from(self.0).ok().map(Duration::from_nanos)
    }
}

const UNITS: [(&str, u64); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads `168h0m0s`, `1.5h`, `-1s`, `0`, and larder's own `7d`. A bare number needs a unit here; [`integer`] has those.
pub(crate) fn duration(text: &str) -> Option<GoDuration> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(GoDuration(0));
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (nanoseconds, after) = duration_part(rest)?;
        total = total.checked_add(nanoseconds)?;
        rest = after;
    }
    let total = i64::try_from(total).ok()?;
    Some(GoDuration(if is_negative { -total } else { total }))
}

/// One number with its unit, and what follows it.
fn duration_part(text: &str) -> Option<(u64, &str)> {
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let end = rest
        .find(|c: char| c.is_ascii_digit() || c == '.')
        .unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(*scale)?;
    let mut place = *scale;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(place.checked_mul(u64::from(digit - b'0'))?)?;
    }
    Some((total, rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Writes a span as Go does (`168h0m0s`, `1.5s`, `10ms`), so that what `check-config` prints can be put into a file.
pub(crate) fn show_duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    let seconds = duration.as_secs();
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => format!("{}us", decimal(nanoseconds, 1_000)),
        1_000_000..1_000_000_000 => format!("{}ms", decimal(nanoseconds, 1_000_000)),
        _ => {
            let rest = decimal(nanoseconds % 60_000_000_000, 1_000_000_000);
            match (seconds / 3600, seconds / 60 % 60) {
                (0, 0) => format!("{rest}s"),
                (0, minutes) => format!("{minutes}m{rest}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{rest}s"),
            }
        }
    }
}

/// `value / unit`, exact, without needless zeros; `unit` is a power of ten.
fn decimal(value: u128, unit: u128) -> String {
    let digits = unit.ilog10() as usize;
    let text = format!("{}.{:0digits$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The words of YAML 1.1 for true and false, as Go's yaml has them.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// The words of YAML 1.1 for nothing.
pub(crate) fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// A whole number as YAML 1.1 and Go read it: `1_000`, `0x1f`, `0o17`, `017` (octal), `0b11`.
pub(crate) fn integer(text: &str) -> Option<i64> {
    let plain = text.replace('_', "");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, lower.get(2..)?),
        [b'0', b'o', ..] => (8, lower.get(2..)?),
        [b'0', b'b', ..] => (2, lower.get(2..)?),
        [b'0', _, ..] => (8, lower.get(1..)?),
        _ => (10, lower.as_str()),
    };
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

/// A number of bytes: `1048576`, `32MiB`, `10G`, `1.5 TB`, `10Gi`.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    text.parse::<ByteSize>().ok().map(|size| size.as_u64())
}

/// A number of bytes, or a whole percentage of the volume.
pub(crate) fn size_limit(text: &str) -> Option<SizeLimit> {
    match text.strip_suffix('%') {
        Some(number) => {
            let percent: u8 = number.trim_end().parse().ok()?;
            (1..=100)
                .contains(&percent)
                .then_some(SizeLimit::Percent(percent))
        }
        None => bytes(text).filter(|bytes| *bytes > 0).map(SizeLimit::Bytes),
    }
}

/// Writes a number of bytes with the largest binary unit that keeps it exact.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const NAMES: [&str; 7] = ["", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut names = NAMES.iter();
    let mut name = names.next().copied().unwrap_or_default();
    while value >= 1024 && value.is_multiple_of(1024) {
        let Some(next) = names.next() else { break };
        (value, name) = (value / 1024, next);
    }
    format!("{value}{name}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("168h0m0s", 168 * 3600 * SECOND),
            ("1.5h", 5400 * SECOND),
            ("300ms", 300_000_000),
            ("1h15m30.918s", 4_530_918_000_000),
            (".5s", SECOND / 2),
            ("1.s", SECOND),
            ("-10s", -10 * SECOND),
            ("5us", 5_000),
            ("5µs", 5_000),
            ("7d", 7 * 86_400 * SECOND),
            ("1d12h", 36 * 3600 * SECOND),
            ("0.000000001s", 1),
            ("2562047h47m16.854775807s", i64::MAX),
        ] {
            assert_eq!(duration(text), Some(GoDuration(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in [
            "",
            "-",
            "+",
            "5",
            "h",
            ".s",
            "5x",
            "5 s",
            "1h ",
            "1w",
            "2562047h47m16.854775808s",
            "∞",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_shown_as_go_shows_them() {
        for (milliseconds, text) in [
            (0, "0s"),
            (25_000, "25s"),
            (1_500, "1.5s"),
            (10, "10ms"),
            (300_000, "5m0s"),
            (604_800_000, "168h0m0s"),
        ] {
            assert_eq!(show_duration(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(show_duration(Duration::from_nanos(30)), "30ns");
        assert_eq!(show_duration(Duration::from_nanos(1_250)), "1.25us");
    }

    #[test]
    fn integers_are_read_as_yaml_1_1_reads_them() {
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("-3", -3),
            ("+3", 3),
            ("1_000", 1000),
            ("0x1F", 31),
            ("0o17", 15),
            ("017", 15),
            ("0b11", 3),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "--1",
            "1.5",
            "09",
            "0x",
            "ten",
            "1 ",
            "9223372036854775808",
        ] {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_percent() {
        for (text, limit) in [
            ("1048576", SizeLimit::Bytes(1 << 20)),
            ("32MiB", SizeLimit::Bytes(32 << 20)),
            ("10Gi", SizeLimit::Bytes(10 << 30)),
            ("10G", SizeLimit::Bytes(10_000_000_000)),
            ("1.5 KiB", SizeLimit::Bytes(1536)),
            ("85%", SizeLimit::Percent(85)),
            ("100 %", SizeLimit::Percent(100)),
        ] {
            assert_eq!(size_limit(text), Some(limit), "{text}");
        }
        for text in [
            "",
            "%",
            "0%",
            "101%",
            "-1%",
            "8.5%",
            "0",
            "ten",
            "-5MiB",
            "5 parsecs",
        ] {
            assert_eq!(size_limit(text), None, "{text}");
        }
        assert_eq!(show_bytes(32 << 20), "32MiB");
        assert_eq!(show_bytes(1500), "1500");
    }

    proptest! {
        #[test]
        fn a_shown_duration_reads_back(nanoseconds in 0..=i64::MAX) {
            let shown = show_duration(GoDuration(nanoseconds).to_std().unwrap());
            prop_assert_eq!(duration(&shown), Some(GoDuration(nanoseconds)));
        }

        #[test]
        fn a_shown_size_reads_back(size: u64) {
            prop_assert_eq!(bytes(&show_bytes(size)), Some(size));
        }

        #[test]
        fn no_text_makes_a_reader_panic(text in ".*") {
            duration(&text);
            integer(&text);
            bytes(&text);
            size_limit(&text);
            boolean(&text);
        }
    }
}
