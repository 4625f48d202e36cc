//! What a person reads when a command failed: one line with the cause, and what to do about it.

use std::fmt::Write as _;

use larder::config::ConfigError;

/// `error: what: cause: cause` on one line, then `hint:` lines. A configuration has a line for each thing that is wrong.
pub(super) fn report(error: &anyhow::Error) -> String {
    let mut text = String::new();
    if let Some(error) = error.downcast_ref::<ConfigError>() {
        for problem in &error.problems {
            write_line(&mut text, "error", &problem.to_string());
        }
        for hint in error.hints() {
            write_line(&mut text, "hint", hint);
        }
        return text;
    }
    write_line(&mut text, "error", &format!("{error:#}"));
    text
}

/// Causes from elsewhere may hold line breaks; they stay on their line.
fn write_line(text: &mut String, kind: &str, message: &str) {
    let message = message.replace(['\n', '\r'], " ");
    // Writing to a String does not fail.
    let _ = writeln!(text, "{kind}: {message}");
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::report;

    #[test]
    fn causes_stand_on_one_line() {
        let error = anyhow!("the disk\nis full").context("cannot write `x`");
        assert_eq!(report(&error), "error: cannot write `x`: the disk is full\n");
    }
}
