//! The messages and tools of a row: with the keys `role` and `content`, or those of ShareGPT. Pure: JSON in, JSON out.

use serde_json::{Map, Value as Json};

/// The column of the functions that the assistant may call.
pub(super) const TOOLS: &str = "tools";
/// Columns of messages, where the settings name none.
const COLUMNS: [&str; 2] = ["messages", "conversations"];
/// Roles by the names that ShareGPT has for them.
const ROLES: [(&str, &str); 6] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
];

/// The columns that may have the messages, the best one first.
pub(super) fn candidates(column: Option<&str>) -> Vec<&str> {
    column.map_or_else(|| COLUMNS.to_vec(), |column| vec![column])
}

/// The messages of a row: a list of objects, or such a list as text.
///
/// # Errors
/// The reason, if there is no such list. It names the message.
pub(super) fn of(row: &Map<String, Json>, column: Option<&str>) -> Result<Json, String> {
    let candidates = candidates(column);
    let found = candidates.iter().find_map(|name| row.get_key_value(*name));
    let (name, value) = found.ok_or_else(|| {
        let there = row.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!(
            "has no value of {:?}; its keys are {there} (name the one of messages with `messages_column`)",
            candidates[0]
        )
    })?;
    match parsed(name, value)? {
        Json::Array(messages) => {
            messages.into_iter().enumerate().map(|(index, message)| with_role(index, message)).collect()
        }
        _ => Err(format!("{name:?} is no list of messages")),
    }
}

/// The tools of a row, if it has some: any JSON, or its text.
///
/// # Errors
/// The reason, if the text is no JSON.
pub(super) fn tools(row: &Map<String, Json>, column: Option<&str>) -> Result<Option<Json>, String> {
    let tools = row.get(TOOLS).filter(|tools| !tools.is_null() && column != Some(TOOLS));
    tools.map(|tools| parsed(TOOLS, tools)).transpose().map(|tools| tools.filter(|tools| !tools.is_null()))
}

/// The value, or the one that its text is.
fn parsed(name: &str, value: &Json) -> Result<Json, String> {
    let Json::String(text) = value else { return Ok(value.clone()) };
    serde_json::from_str(text).map_err(|error| format!("{name:?} is text, and no JSON: {error}"))
}

/// The message with the keys `role` and `content`. Keys without a value are left out, as transformers does: to a template, a text
/// that is null is none, and not the word "None".
fn with_role(index: usize, message: Json) -> Result<Json, String> {
    let Json::Object(mut message) = message else {
        return Err(format!("messages[{index}] is no object with the keys role and content"));
    };
    message.retain(|_, value| !value.is_null());
    if message.contains_key("role") {
        return Ok(Json::Object(message));
    }
    let from = message.shift_remove("from");
    let from = from.as_ref().and_then(Json::as_str);
    let from = from.ok_or_else(|| format!("messages[{index}] has no role"))?;
    let role = ROLES.iter().find(|(name, _)| *name == from);
    let (_, role) = role.ok_or_else(|| {
        let known = ROLES.map(|(name, _)| name).join(", ");
        format!("messages[{index}] is from {from:?}, which is no known role: use one of {known}")
    })?;
    let value = message.shift_remove("value").ok_or_else(|| format!("messages[{index}] has no value"))?;
    let mut named = Map::new();
    named.insert("role".to_owned(), Json::from(*role));
    named.insert("content".to_owned(), value);
    named.extend(message);
    Ok(Json::Object(named))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(row: Json, column: Option<&str>) -> Result<Json, String> {
        of(row.as_object().expect("an object"), column)
    }

    #[test]
    fn keys_of_sharegpt_become_those_of_templates() {
        let row = json!({"conversations": [
            {"from": "system", "value": "Be terse."},
            {"from": "human", "value": "Hi", "weight": 1},
            {"from": "gpt", "value": "Hello"},
        ]});
        let expected = json!([
            {"role": "system", "content": "Be terse."},
            {"role": "user", "content": "Hi", "weight": 1},
            {"role": "assistant", "content": "Hello"},
        ]);
        assert_eq!(messages(row.clone(), None), Ok(expected.clone()));
        let text = json!({"chat": row["conversations"].to_string()});
        assert_eq!(messages(text, Some("chat")), Ok(expected));
    }

    #[test]
    fn messages_with_roles_stay_as_they_are_in_the_order_of_their_keys() {
        let message = json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"b": 1, "a": null}}}], "from": "x"});
        let row = json!({"messages": [message], "conversations": []});
        let found = messages(row, None).expect("a list");
        assert_eq!(found.to_string(), json!([message]).to_string());
    }

    #[test]
    fn a_key_without_a_value_is_left_out() {
        let called =
            json!({"role": "assistant", "content": null, "tool_calls": [{"arguments": {"a": null}}]});
        let found = messages(json!({"messages": [called]}), None).expect("a list");
        let expected = json!([{"role": "assistant", "tool_calls": [{"arguments": {"a": null}}]}]);
        assert_eq!(found.to_string(), expected.to_string());
    }

    #[test]
    fn mistakes_name_the_message() {
        let refused = |row: Json, words: &str| {
            let reason = messages(row, None).expect_err(words);
            assert!(reason.contains(words), "{words:?} not in {reason}");
        };
        refused(json!({"text": "a", "id": 1}), "its keys are text, id");
        refused(json!({"messages": null}), "\"messages\" is no list");
        refused(json!({"messages": "[1"}), "\"messages\" is text, and no JSON");
        refused(json!({"messages": [{"role": "user"}, 7]}), "messages[1] is no object");
        refused(json!({"messages": [{"content": "a"}]}), "messages[0] has no role");
        refused(json!({"messages": [{"from": "bing", "value": "a"}]}), "messages[0] is from \"bing\"");
        refused(json!({"messages": [{"from": "gpt", "content": "a"}]}), "messages[0] has no value");
    }

    #[test]
    fn tools_are_a_list_or_its_text() {
        let list = json!([{"name": "f"}]);
        for (value, expected) in [
            (list.clone(), Some(&list)),
            (json!(list.to_string()), Some(&list)),
            (json!(null), None),
            (json!("null"), None),
        ] {
            let row = json!({"tools": value});
            assert_eq!(tools(row.as_object().expect("an object"), None).expect("JSON").as_ref(), expected);
        }
        assert_eq!(tools(&Map::new(), None), Ok(None));
        assert!(tools(json!({"tools": "f()"}).as_object().expect("an object"), None).is_err());
    }
}
