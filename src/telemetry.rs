//! Log lines: logfmt as distribution writes it, JSON, or logstash's JSON; the application's on standard error, one line
//! per request on standard output.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, Targets, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::clock::Clock;

/// The target of the lines that say how a request was answered.
pub const ACCESS: &str = "larder::access";

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `time="..." level=info msg="..." key=value`.
    Text,
    /// One JSON object with `time`, `level`, `msg`.
    Json,
    /// One JSON object with `@timestamp`, `@version`, `level`, `message`.
    Logstash,
}

/// What to log, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The least important level that is shown.
    pub level: Level,
    /// The form of lines.
    pub form: Form,
    /// Fields on every line.
    pub fields: BTreeMap<String, String>,
    /// Whether there is a line per request.
    pub has_access_log: bool,
}

/// Starts logging for the process; a second call changes nothing.
pub fn init(settings: &Settings) {
    let level = LevelFilter::from_level(settings.level);
    // The parts below speak up only where something is wrong.
    let ours = Targets::new()
        .with_target("larder", level)
        .with_default(level.min(LevelFilter::WARN));
    let format = |form| Format {
        form,
        fields: settings.fields.clone(),
        clock: Clock::default(),
    };
    let app = tracing_subscriber::fmt::layer()
        .event_format(format(settings.form))
        .with_writer(std::io::stderr)
        .with_filter(ours)
        .with_filter(targeted(false));
    let access = settings.has_access_log.then(|| {
        tracing_subscriber::fmt::layer()
            .event_format(format(settings.form))
            .with_writer(std::io::stdout)
            .with_filter(targeted(true))
    });
    // Only a second start in one process (tests) finds a subscriber there already.
    drop(tracing_subscriber::registry().with(app).with(access).try_init());
}

fn targeted(is_access: bool) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(move |metadata| (metadata.target() == ACCESS) == is_access)
}

struct Format {
    form: Form,
    fields: BTreeMap<String, String>,
    clock: Clock,
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut found = Fields::default();
        event.record(&mut found);
        let time = humantime::format_rfc3339_millis(self.clock.now()).to_string();
        let level = level_name(*event.metadata().level());
        let line = match self.form {
            Form::Text => self.text(&time, level, &found),
            Form::Json => self.json(
                [("time", &time), ("level", level), ("msg", &found.message)],
                &found,
            ),
            Form::Logstash => {
                let head = [
                    ("@timestamp", time.as_str()),
                    ("@version", "1"),
                    ("level", level),
                    ("message", &found.message),
                ];
                self.json(head, &found)
            }
        };
        writeln!(writer, "{line}")
    }
}

impl Format {
    fn text(&self, time: &str, level: &str, found: &Fields) -> String {
        let mut line = format!("time=\"{time}\" level={level} msg={}", quoted(&found.message));
        let fixed = self
            .fields
            .iter()
            .map(|(key, value)| (key.as_str(), value.clone()));
        let own = found.others.iter().map(|(key, value)| (*key, plain(value)));
        for (key, value) in own.chain(fixed) {
            let value = if needs_quotes(&value) {
                quoted(&value)
            } else {
                value
            };
            // Writing to a String cannot fail.
            let _ = write!(line, " {key}={value}");
        }
        line
    }

    fn json<const N: usize>(&self, head: [(&str, &str); N], found: &Fields) -> String {
        let mut object = Map::new();
        for (key, value) in &self.fields {
            object.insert(key.clone(), Value::from(value.as_str()));
        }
        for (key, value) in &found.others {
            object.insert((*key).to_owned(), value.clone());
        }
        for (key, value) in head {
            object.insert(key.to_owned(), Value::from(value));
        }
        Value::Object(object).to_string()
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn needs_quotes(text: &str) -> bool {
    text.is_empty()
        || text
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || matches!(c, '"' | '='))
}

/// A text between quotes, escaped so that it stays on its line.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => self.message = plain(&value),
            name => self.others.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, Value::from(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, Value::from(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, Value::from(value));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            source = cause.source();
        }
        self.add(field, Value::from(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Fields {
        let others = vec![("n", Value::from(7)), ("path", Value::from("a b\n\"c\""))];
        Fields {
            message: "listening".to_owned(),
            others,
        }
    }

    fn format(form: Form) -> Format {
        let fields = BTreeMap::from([("service".to_owned(), "registry".to_owned())]);
        Format {
            form,
            fields,
            clock: Clock::default(),
        }
    }

    #[test]
    fn text_lines_are_logfmt_on_one_line() {
        let line = format(Form::Text).text("T", "info", &found());
        assert_eq!(
            line,
            r#"time="T" level=info msg="listening" n=7 path="a b\n\"c\"" service=registry"#
        );
    }

    #[test]
    fn json_lines_are_one_object() {
        let line =
            format(Form::Json).json([("time", "T"), ("level", "info"), ("msg", "listening")], &found());
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["service"], "registry");
        assert_eq!(
            (&value["n"], &value["msg"]),
            (&Value::from(7), &Value::from("listening"))
        );
        assert!(!line.contains('\n'));
    }
}
