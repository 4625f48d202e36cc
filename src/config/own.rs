//! From the tree to [`Config`](super::Config): the section `larder`, except the upstreams and the listener's bounds.

use std::time::Duration;

use super::{
    hosted,
    listener::positive,
    reader::{Reader, Section},
    types::{Gc, Larder, Renew, Scrub, SizeLimit, Timeouts},
    upstreams::host_name,
    values::{Bytes, Word},
};

/// Reads the section.
pub(crate) fn larder(reader: &mut Reader<'_>, root: &Section<'_>) -> Larder {
    let larder = root.section("larder");
    Larder {
        max_size: reader.get_or(&larder, "maxsize", SizeLimit::Percent(85)),
        tag_ttl: reader.get_or(&larder, "tagttl", Duration::ZERO),
        negative_ttl: reader.get_or(&larder, "negativettl", Duration::ZERO),
        timeouts: timeouts(reader, &larder.section("timeouts")),
        realms: realms(reader, &larder),
        gc: gc(reader, &larder.section("gc")),
        scrub: scrub(reader, &larder.section("scrub")),
        hosted: hosted::hosted(reader, &larder),
        index_cache_bytes: index_cache(reader, &larder),
    }
}

fn index_cache(reader: &mut Reader<'_>, larder: &Section<'_>) -> u64 {
    let bytes = reader.get_or(larder, "cachesize", Bytes(32 << 20)).0;
    if bytes < 1 << 20 {
        reader.problem(larder, "cachesize", "must be at least 1MiB", None);
    }
    bytes
}

fn timeouts(reader: &mut Reader<'_>, timeouts: &Section<'_>) -> Timeouts {
    let connect = positive(reader, timeouts, "connect", Duration::from_secs(3));
    let header = positive(reader, timeouts, "header", Duration::from_secs(6));
    if header < connect {
        let hint = Some("connecting is part of waiting for the headers");
        reader.problem(timeouts, "header", "is shorter than `connect` beside it", hint);
    }
    let idle = positive(reader, timeouts, "idle", Duration::from_secs(30));
    let stale = positive(reader, timeouts, "stale", Duration::from_secs(2));
    Timeouts {
        connect,
        header,
        idle,
        stale,
    }
}

fn realms(reader: &mut Reader<'_>, larder: &Section<'_>) -> Vec<String> {
    let mut realms = Vec::new();
    for realm in reader.list::<String>(larder, "realms") {
        let Some(realm) = host_name(&realm) else {
            let hint = Some("write it like `auth.example.com` or `auth.example.com:8443`, without a scheme");
            reader.problem(larder, "realms", format!("`{realm}` is no host"), hint);
            continue;
        };
        realms.push(realm);
    }
    realms
}

fn gc(reader: &mut Reader<'_>, gc: &Section<'_>) -> Gc {
    Gc {
        renew: reader.get_or(gc, "renew", Word(Renew::Use)).0,
        interval: positive(reader, gc, "interval", Duration::from_mins(1)),
    }
}

fn scrub(reader: &mut Reader<'_>, scrub: &Section<'_>) -> Scrub {
    let interval = reader.get_or(scrub, "interval", Duration::ZERO);
    let rate_bytes = reader.get_or(scrub, "rate", Bytes(16 << 20)).0;
    if rate_bytes == 0 {
        reader.problem(
            scrub,
            "rate",
            "must be more than 0",
            Some("`scrub.interval: 0s` switches it off"),
        );
    }
    Scrub {
        interval: Some(interval).filter(|interval| !interval.is_zero()),
        rate_bytes,
    }
}
