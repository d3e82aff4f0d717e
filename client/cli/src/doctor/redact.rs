//! Takes secrets out of texts: values of keys that name a secret, users and queries of URLs, tokens, private keys. Pure.

use serde_json::Value;

/// In the place of a secret.
pub(crate) const REDACTED: &str = "REDACTED";

/// Parts of names of keys whose values are secrets.
const SECRET: [&str; 8] =
    ["secret", "token", "password", "passwd", "key", "credential", "authorization", "connection_string"];

/// Whether a key of this name holds a secret, or may.
pub(crate) fn is_secret(key: &str) -> bool {
    let lower = key.to_ascii_lowercase().replace('-', "_");
    lower == "join" || SECRET.iter().any(|part| lower.contains(part))
}

/// The value of a setting or variable of that name.
pub(crate) fn value(key: &str, value: &str) -> String {
    match is_secret(key) && !value.is_empty() {
        true => REDACTED.to_owned(),
        false => line(value),
    }
}

/// A line of words for people: without users and queries of URLs, and without tokens of shardd. Values of keys stay.
pub(crate) fn line(text: &str) -> String {
    without_tokens(&without_url_secrets(text))
}

/// A text of any kind, as a log: also without the values of keys that name a secret, and without private keys.
pub(crate) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut is_private = false;
    for part in text.split_inclusive('\n') {
        let is_mark = part.contains("-----") && part.contains("PRIVATE KEY");
        if is_mark && part.contains("BEGIN") {
            is_private = true;
            out.push_str(REDACTED);
            out.push('\n');
        }
        match is_private {
            true => is_private = !(is_mark && part.contains("END")),
            false => out.push_str(&line(&without_values(part))),
        }
    }
    out
}

/// A JSON document.
pub(crate) fn json(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                match member {
                    Value::Null | Value::Bool(_) => {}
                    member if is_secret(key) => *member = REDACTED.into(),
                    member => json(member),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(json),
        Value::String(text) => *text = line(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A file of settings, as its keys and values: comments are left out. Text that is no TOML is redacted line by line.
pub(crate) fn toml(file: &str) -> String {
    let parsed = file.parse::<toml::Table>();
    let redacted = parsed.ok().and_then(|mut table| {
        table.iter_mut().for_each(|(key, value)| toml_value(key, value));
        toml::to_string(&table).ok()
    });
    redacted.unwrap_or_else(|| text(file))
}

fn toml_value(key: &str, value: &mut toml::Value) {
    match value {
        // A secret may be a table, too.
        toml::Value::Table(table) if !is_secret(key) => {
            table.iter_mut().for_each(|(key, value)| toml_value(key, value));
        }
        toml::Value::Boolean(_) => {}
        value if is_secret(key) => *value = REDACTED.into(),
        toml::Value::Array(list) => list.iter_mut().for_each(|value| toml_value("", value)),
        toml::Value::String(text) => *text = line(text),
        _ => {}
    }
}

/// Without the part before `@` of the host of a URL, and without what follows its `?`.
fn without_url_secrets(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let ends = |c: char| c.is_whitespace() || "\"'`<>(){}".contains(c);
        let (url, others) = after.split_at(after.find(ends).unwrap_or(after.len()));
        let host_end = url.find(['/', '?', '#']).unwrap_or(url.len());
        let (host, path) = url.split_at(host_end);
        match host.rsplit_once('@') {
            Some((_, host)) => out.push_str(&format!("{REDACTED}@{host}")),
            None => out.push_str(host),
        }
        match path.split_once('?') {
            Some((path, _)) => out.push_str(&format!("{path}?{REDACTED}")),
            None => out.push_str(path),
        }
        rest = others;
    }
    out.push_str(rest);
    out
}

/// Without tokens of clients (`shardd_...`), join tokens (`shardd1,...`), and `Bearer` tokens.
fn without_tokens(text: &str) -> String {
    let (mut out, mut is_bearer) = (String::with_capacity(text.len()), false);
    for piece in text.split_inclusive(|c: char| c.is_whitespace() || "\"'`=()<>;".contains(c)) {
        let word = piece.trim_end_matches(|c: char| c.is_whitespace() || "\"'`=()<>;".contains(c));
        let is_token = is_client_token(word) || word.starts_with("shardd1,") || is_bearer && !word.is_empty();
        if !word.is_empty() {
            is_bearer = word == "Bearer";
        }
        match is_token {
            true => {
                out.push_str(REDACTED);
                out.push_str(&piece[word.len()..]);
            }
            false => out.push_str(piece),
        }
    }
    out
}

/// `shardd_ID_SECRET`, both in hexadecimal digits: other names of ours begin so, too.
fn is_client_token(word: &str) -> bool {
    let rest = word.strip_prefix("shardd_").and_then(|rest| rest.split_once('_'));
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_hexdigit());
    rest.is_some_and(|(id, secret)| is_hex(id) && is_hex(secret.trim_end_matches([',', '.', ':'])))
}

/// Without the values in `key=value`, `key: value` and `"key": "value"` whose key names a secret.
fn without_values(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    while let Some(at) = rest.find(is_name) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        let (name, after) = after.split_at(after.find(|c| !is_name(c)).unwrap_or(after.len()));
        out.push_str(name);
        rest = after;
        if !is_secret(name) {
            continue;
        }
        let quote = |text: &str| text.starts_with(['"', '\'']);
        let closing = usize::from(quote(rest));
        let sign = rest[closing..].trim_start_matches(' ');
        let Some(value) = sign.strip_prefix('=').or_else(|| sign.strip_prefix(':')) else { continue };
        let value = value.trim_start_matches(' ');
        let opening = usize::from(quote(value));
        let end = match value.chars().next().filter(|_| opening == 1) {
            Some(mark) => value[1..].find(mark).map_or(value.len(), |at| at + 1),
            None => value.find(|c: char| c.is_whitespace() || ",;}".contains(c)).unwrap_or(value.len()),
        };
        if end == opening {
            continue;
        }
        out.push_str(&rest[..rest.len() - value.len() + opening]);
        out.push_str(REDACTED);
        rest = &value[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_queries_of_urls_are_taken_out() {
        for (text, wants) in [
            ("http://me:pw@proxy:3128/", "http://REDACTED@proxy:3128/"),
            ("see https://h/p?X-Amz-Signature=ab&x=1, please", "see https://h/p?REDACTED please"),
            ("etcd://root@a:1,b:2/x?password-file=/p", "etcd://REDACTED@a:1,b:2/x?REDACTED"),
            ("`http://a/b` and (http://c@d)", "`http://a/b` and (http://REDACTED@d)"),
            ("no URL: a@b?c", "no URL: a@b?c"),
            ("s3://bucket/folder", "s3://bucket/folder"),
        ] {
            assert_eq!(line(text), wants);
        }
    }

    #[test]
    fn tokens_are_taken_out_wherever_they_stand() {
        for (text, wants) in [
            ("the token shardd_1f0c_aa11 was refused", "the token REDACTED was refused"),
            ("authorization: Bearer abc.def next", "authorization: Bearer REDACTED next"),
            ("join=shardd1,https://a:1,ab,cd", "join=REDACTED"),
            ("shardd_cache_size is a metric", "shardd_cache_size is a metric"),
        ] {
            assert_eq!(line(text), wants);
        }
    }

    #[test]
    fn a_log_keeps_no_value_of_a_secret_key() {
        let log = "INFO secret=abc n=1\nAWS_SECRET_ACCESS_KEY='a b' x\n{\"password\": \"p\", \"n\": 2}\n\
                   token: t1, rest\npassword=\nkey\n";
        let wants = "INFO secret=REDACTED n=1\nAWS_SECRET_ACCESS_KEY='REDACTED' x\n\
                     {\"password\": \"REDACTED\", \"n\": 2}\ntoken: REDACTED, rest\npassword=\nkey\n";
        assert_eq!(text(log), wants);
        let pem = "a\n-----BEGIN PRIVATE KEY-----\nMIG\n-----END PRIVATE KEY-----\nb\n";
        assert_eq!(text(pem), "a\nREDACTED\nb\n");
    }

    #[test]
    fn documents_and_settings_keep_their_form() {
        let mut value = serde_json::json!({
            "token": "x", "keys": [1, "b"], "n": 1, "secret": null, "list": [{ "url": "http://u@h/" }],
        });
        json(&mut value);
        let wants = serde_json::json!({
            "token": "REDACTED", "keys": "REDACTED", "n": 1, "secret": null,
            "list": [{ "url": "http://REDACTED@h/" }],
        });
        assert_eq!(value, wants);
        let file = "# my password is x\ndata = \"/srv\"\njoin = \"shardd1,a,b,c\"\ntls-key = \"/k\"\n\
                    metastore = \"etcd://me@h/x?cert=1\"\n[a]\npassword = 1\n";
        assert_eq!(
            toml(file),
            "data = \"/srv\"\njoin = \"REDACTED\"\nmetastore = \"etcd://REDACTED@h/x?REDACTED\"\n\
             tls-key = \"REDACTED\"\n\n[a]\npassword = \"REDACTED\"\n"
        );
        assert_eq!(toml("broken = \npassword = \"x\"\n"), "broken = \npassword = \"REDACTED\"\n");
        assert_eq!(value_of("SHARDD_TOKEN", "abc"), "REDACTED");
        assert_eq!(value_of("http_proxy", "http://a:b@c"), "http://REDACTED@c");
    }

    fn value_of(key: &str, text: &str) -> String {
        super::value(key, text)
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_redacted_without_a_panic(any: String, secret in "[a-z0-9]{12}") {
            text(&any);
            toml(&any);
            let with = format!("{any} password={secret} http://u:{secret}@h/ Bearer {secret}");
            proptest::prop_assert!(!text(&with).contains(&secret), "{}", text(&with));
        }
    }
}
