//! Conversations: rendered with a chat template, tokenized, with a loss mask.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListBuilder, StringBuilder, StructBuilder};
use arrow::datatypes::{DataType, Field, Fields, UInt8Type, UInt16Type, UInt32Type};
use proptest::prelude::*;
use proptest::strategy::Strategy as _;
use serde_json::json;
use shardd_packing::{Long, Strategy};

use super::*;

/// With generation blocks, as templates for training have them.
const MARKED: &str = "{{ bos_token }}{% for message in messages %}\
    {% if message.role == 'robot' %}{{ raise_exception('roles are user and assistant') }}{% endif %}\
    <{{ message.role }}>{% if message.role == 'assistant' %}{% generation %}{{ message.content }}\
    {% for call in message.tool_calls %}{{ call | tojson }}{% endfor %}{{ eos_token }}{% endgeneration %}\
    {% else %}{{ message.content }}{% endif %}{{ '\\n' }}{% endfor %}";

fn unmarked() -> String {
    MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
        + "{% if add_generation_prompt %}<assistant>{% endif %}"
}

fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tokens/testdata/small.json")
}

fn model(template: &str) -> Vec<u8> {
    let config =
        json!({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>"}, "chat_template": template});
    config.to_string().into_bytes()
}

/// The settings with a template that lies in this directory.
fn with(template: &Path) -> IngestConfig {
    IngestConfig { tokenizer: Some(tokenizer()), chat_template: Some(template.to_owned()), ..sequential() }
}

/// Files of data in one directory, and those of a model in another.
struct Chats {
    data: TempDir,
    model: TempDir,
}

impl Chats {
    fn new(template: &str, files: &[(&str, Vec<u8>)]) -> Chats {
        Chats { data: directory(files), model: directory(&[("tokenizer_config.json", model(template))]) }
    }

    fn config(&self) -> IngestConfig {
        with(&self.model.path().join("tokenizer_config.json"))
    }

    fn run(&self, config: &IngestConfig) -> Ingested {
        run(self.data.path(), config, 2).unwrap()
    }

    fn refusal(&self, config: &IngestConfig, words: &str) {
        let text = refusal(self.data.path(), config);
        assert!(text.contains(words), "{words:?} not in {text}");
    }
}

fn lines(rows: &[Value]) -> Vec<u8> {
    rows.iter().map(|row| format!("{row}\n")).collect::<String>().into_bytes()
}

/// Each row as text, and the part of the text that has a loss.
fn texts(ingested: &Ingested) -> Vec<(String, String)> {
    let decode = |tokens: &[(u16, u8)]| {
        let ids: Vec<u32> = tokens.iter().map(|(id, _)| (*id).into()).collect();
        let tokenizer = shardd_tokens::Tokenizer::from_file(tokenizer()).unwrap();
        String::from_utf8(tokenizer.decode(&ids).unwrap()).unwrap()
    };
    let rows = tokens(ingested).into_iter().map(|tokens| {
        let lossy: Vec<_> = tokens.iter().copied().filter(|(_, mark)| *mark == 1).collect();
        (decode(&tokens), decode(&lossy))
    });
    rows.collect()
}

/// The tokens of each document, each with its mark: a row, or the parts of a packed one.
fn tokens(ingested: &Ingested) -> Vec<Vec<(u16, u8)>> {
    let mut documents = Vec::new();
    for batch in ingested.batches() {
        let column = |name: &str| batch.column_by_name(name).cloned();
        let (ids, marks) = (column("tokens").unwrap(), column("loss_mask").unwrap());
        let cells = |column: &ArrayRef, row| match column.data_type() {
            DataType::List(_) => column.as_list::<i32>().value(row),
            _ => column.as_fixed_size_list().value(row),
        };
        for row in 0..batch.num_rows() {
            let (ids, marks) = (cells(&ids, row), cells(&marks, row));
            let ids = ids.as_primitive::<UInt16Type>().values().iter().copied();
            let tokens: Vec<_> =
                ids.zip(marks.as_primitive::<UInt8Type>().values().iter().copied()).collect();
            let used = column("length")
                .map_or(tokens.len(), |length| length.as_primitive::<UInt32Type>().value(row) as usize);
            assert!(tokens[used..].iter().all(|token| *token == (0, 0)), "padding has no loss");
            let mut ends = column("documents").map_or(vec![0], |starts| {
                let starts = starts.as_list::<i32>().value(row);
                starts.as_primitive::<UInt32Type>().values().iter().map(|&start| start as usize).collect()
            });
            ends.push(used);
            documents.extend(ends.windows(2).map(|ends| tokens[ends[0]..ends[1]].to_vec()));
        }
    }
    documents
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn conversations() -> Vec<Value> {
    vec![
        json!({"messages": [message("user", "Größe?"), message("assistant", "日本")]}),
        json!({"messages": [
            message("system", "Be terse."),
            message("user", "<|end|> is a token"),
            message("assistant", "Yes."),
            message("user", "And the line?"),
            message("assistant", "isn't it"),
        ], "source": "b"}),
    ]
}

const TEXTS: [(&str, &str); 2] = [
    ("<|begin|><user>Größe?\n<assistant>日本<|end|>\n", "日本<|end|>"),
    (
        "<|begin|><system>Be terse.\n<user><|end|> is a token\n<assistant>Yes.<|end|>\n<user>And the line?\n<assistant>isn't it<|end|>\n",
        "Yes.<|end|>isn't it<|end|>",
    ),
];

fn expected() -> Vec<(String, String)> {
    TEXTS.map(|(text, part)| (text.to_owned(), part.to_owned())).to_vec()
}

#[test]
fn a_conversation_is_a_row_of_tokens_of_which_those_of_the_assistant_have_a_loss() {
    let chats = Chats::new(MARKED, &[("a.jsonl", lines(&conversations()))]);
    let ingested = chats.run(&chats.config());
    assert_eq!(texts(&ingested), expected());
    let types = ingested.types().into_iter().map(|(name, data_type)| format!("{name}: {data_type}"));
    assert_eq!(
        types.collect::<Vec<_>>(),
        ["tokens: List(non-null UInt16)", "loss_mask: List(non-null UInt8)"]
    );
    let names: Vec<_> = ingested.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(names, ["a.jsonl", "small.json", "tokenizer_config.json"]);
    assert_eq!(ingested.provenance.settings["chat_template"], "tokenizer_config.json");
    let all = chats.run(&IngestConfig { loss: Loss::All, ..chats.config() });
    assert!(texts(&all).iter().all(|(text, part)| text == part));
}

#[test]
fn without_generation_blocks_the_assistants_parts_are_found_by_prefixes() {
    let chats = Chats::new(&unmarked(), &[("a.jsonl", lines(&conversations()))]);
    let found = texts(&chats.run(&chats.config()));
    // The line after an answer ends its message.
    let expected: Vec<_> =
        expected().into_iter().map(|(text, part)| (text, part.replace("<|end|>", "<|end|>\n"))).collect();
    assert_eq!(found, expected);
}

#[test]
fn sharegpt_text_and_other_columns_make_the_same_rows() {
    let of_sharegpt = |row: &Value| {
        let messages = row["messages"].as_array().unwrap().iter().map(|message| {
            let from = match message["role"].as_str().unwrap() {
                "user" => "human",
                "assistant" => "gpt",
                other => other,
            };
            json!({"from": from, "value": message["content"]})
        });
        json!({"id": 1, "conversations": messages.collect::<Vec<_>>()})
    };
    let rows = conversations();
    let sharegpt: Vec<Value> = rows.iter().map(of_sharegpt).collect();
    let text: Vec<Value> = rows.iter().map(|row| json!({"chat": row["messages"].to_string()})).collect();
    let csv: String = rows
        .iter()
        .map(|row| format!("\"{}\"\n", row["messages"].to_string().replace('"', "\"\"")))
        .collect();
    for (name, bytes, column) in [
        ("a.jsonl", lines(&sharegpt), None),
        ("a.jsonl.gz", gzip(&lines(&text)), Some("chat")),
        ("a.csv", format!("messages\n{csv}").into_bytes(), None),
    ] {
        let chats = Chats::new(MARKED, &[(name, bytes)]);
        let config = IngestConfig { messages_column: column.map(str::to_owned), ..chats.config() };
        assert_eq!(texts(&chats.run(&config)), expected(), "{name}");
    }
}

/// Messages as Hugging Face's tables have them: each has the keys of all.
fn table(rows: &[Value]) -> RecordBatch {
    let text = |name| Field::new(name, DataType::Utf8, true);
    let call = Fields::from(vec![text("name"), text("city")]);
    let calls = DataType::new_list(DataType::Struct(call.clone()), true);
    let fields = Fields::from(vec![text("role"), text("content"), Field::new("tool_calls", calls, true)]);
    let mut list = ListBuilder::new(StructBuilder::from_fields(fields, 0));
    for row in rows {
        for message in row["messages"].as_array().unwrap() {
            let messages = list.values();
            for (at, key) in ["role", "content"].into_iter().enumerate() {
                messages.field_builder::<StringBuilder>(at).unwrap().append_option(message[key].as_str());
            }
            let calls =
                messages.field_builder::<ListBuilder<Box<dyn arrow::array::ArrayBuilder>>>(2).unwrap();
            let has_calls = message["tool_calls"].is_array();
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let structs = calls.values().as_any_mut().downcast_mut::<StructBuilder>().unwrap();
                for (at, key) in ["name", "city"].into_iter().enumerate() {
                    structs.field_builder::<StringBuilder>(at).unwrap().append_option(call[key].as_str());
                }
                structs.append(true);
            }
            calls.append(has_calls);
            messages.append(true);
        }
        list.append(true);
    }
    RecordBatch::try_from_iter([("messages", Arc::new(list.finish()) as ArrayRef)]).unwrap()
}

#[test]
fn in_a_table_a_null_is_a_key_that_the_message_does_not_have() {
    let mut rows = conversations();
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"name": "f"}, {"name": "g", "city": "Ulm"}]});
    rows.push(json!({"messages": [message("user", "?"), call]}));
    let chats = Chats::new(MARKED, &[]);
    write_parquet(chats.data.path().join("a.parquet"), &table(&rows));
    let found = texts(&chats.run(&chats.config()));
    assert_eq!(found[..2], expected());
    assert_eq!(found[2].1, "{\"name\": \"f\"}{\"name\": \"g\", \"city\": \"Ulm\"}<|end|>");
    let of_lines = Chats::new(MARKED, &[("a.jsonl", lines(&rows))]);
    assert_eq!(texts(&of_lines.run(&of_lines.config())), found);
}

#[test]
fn objects_of_lines_are_rendered_as_they_are_written() {
    let call = |call: Value| json!({"messages": [message("user", "?"), {"role": "assistant", "content": "", "tool_calls": [call]}]});
    // One column of Arrow could not hold these, and would add keys with nulls.
    let rows = [
        call(json!({"name": "f", "arguments": {"b": [1.5, null], "a": 1}})),
        call(json!({"name": "g", "arguments": "none"})),
        call(json!([{"z": {"y": true}}])),
    ];
    let chats = Chats::new(MARKED, &[("a.jsonl", lines(&rows))]);
    let found: Vec<String> = texts(&chats.run(&chats.config())).into_iter().map(|(_, part)| part).collect();
    assert_eq!(
        found,
        [
            "{\"name\": \"f\", \"arguments\": {\"b\": [1.5, null], \"a\": 1}}<|end|>",
            "{\"name\": \"g\", \"arguments\": \"none\"}<|end|>",
            "[{\"z\": {\"y\": true}}]<|end|>",
        ]
    );
}

#[test]
fn tools_are_rendered_by_the_template_for_them() {
    let default =
        "{% for message in messages %}{% generation %}{{ message.content }}{% endgeneration %}{% endfor %}";
    let templates = json!({"bos_token": null, "chat_template": [
        {"name": "default", "template": default},
        {"name": "tool_use", "template": format!("{{{{ tools | tojson }}}}{default}")},
    ]});
    let rows = [
        json!({"messages": [message("assistant", "a")]}),
        json!({"messages": [message("assistant", "b")], "tools": [{"name": "f", "at": 1}]}),
        json!({"messages": [message("assistant", "c")], "tools": "[{\"name\": \"g\"}]"}),
    ];
    let chats = Chats::new("", &[("a.jsonl", lines(&rows))]);
    fs::write(chats.model.path().join("tokenizer_config.json"), templates.to_string()).unwrap();
    let found: Vec<String> = texts(&chats.run(&chats.config())).into_iter().map(|(text, _)| text).collect();
    assert_eq!(found, ["a", "[{\"name\": \"f\", \"at\": 1}]b", "[{\"name\": \"g\"}]c"]);
}

#[test]
fn a_conversation_that_cannot_be_rendered_is_named_by_its_line_and_message() {
    let mut rows = conversations();
    rows.insert(
        1,
        json!({"messages": [message("user", "a"), message("assistant", "b"), message("robot", "c")]}),
    );
    let mut text = lines(&rows);
    text.extend(b"\n[1]\n{\"text\": \"a\"}\n");
    let chats = Chats::new(MARKED, &[("b/a.jsonl", text)]);
    chats.refusal(
        &chats.config(),
        "b/a.jsonl: line 2: the chat template refuses messages[2]: roles are user and assistant",
    );
    let skipped = chats.run(&IngestConfig { on_error: OnError::Skip, ..chats.config() });
    assert_eq!(texts(&skipped), expected());
    assert_eq!(skipped.left_out(), ["b/a.jsonl, line 2", "b/a.jsonl, line 5", "b/a.jsonl, line 6"]);
    let reason = &skipped.provenance.skipped.first[2].reason;
    assert!(reason.contains("has no value of \"messages\"; its keys are text"), "{reason}");

    let parquet = Chats::new(MARKED, &[]);
    write_parquet(parquet.data.path().join("a.parquet"), &table(&rows));
    parquet.refusal(&parquet.config(), "row 1\" makes no tokens: the chat template refuses messages[2]");
    let skipped = parquet.run(&IngestConfig { on_error: OnError::Skip, ..parquet.config() });
    assert_eq!(texts(&skipped), expected());
    assert!(skipped.left_out()[0].ends_with("row 1"), "{:?}", skipped.left_out());
}

#[test]
fn a_conversation_without_a_token_of_loss_is_left_out_and_listed() {
    let mut rows = conversations();
    rows.insert(1, json!({"messages": [message("user", "a")]}));
    for config in [
        IngestConfig::default(),
        IngestConfig {
            sequence_length: Some(64),
            packing: Some(Strategy::BestFit),
            ..IngestConfig::default()
        },
    ] {
        let chats = Chats::new(MARKED, &[("a.jsonl", lines(&rows))]);
        let IngestConfig { sequence_length, packing, .. } = config;
        let ingested = chats.run(&IngestConfig { sequence_length, packing, ..chats.config() });
        assert_eq!(sorted(texts(&ingested)), sorted(expected()));
        assert_eq!(ingested.left_out(), ["a.jsonl, line 2"]);
        assert!(
            ingested.provenance.skipped.first[0].reason.contains("no token of the conversation has a loss")
        );
        let all = chats.run(&IngestConfig { sequence_length, packing, loss: Loss::All, ..chats.config() });
        assert_eq!((texts(&all).len(), all.left_out().len()), (3, 0));
    }
}

#[test]
fn long_conversations_are_cut_with_their_marks_or_named_by_their_line() {
    let chats = Chats::new(MARKED, &[("a.jsonl", lines(&conversations()))]);
    let whole = tokens(&chats.run(&chats.config()));
    let length = whole[0].len() as u32;
    assert!(whole[1].len() > whole[0].len());
    let with = |long| IngestConfig {
        sequence_length: Some(length),
        packing: Some(Strategy::BestFitDecreasing),
        long_documents: Some(long),
        ..chats.config()
    };
    let truncated = sorted(tokens(&chats.run(&with(Long::Truncate))));
    assert_eq!(truncated, sorted(vec![whole[0].clone(), whole[1][..length as usize].to_vec()]));
    let found =
        format!("a.jsonl: line 2: the document has {} tokens, and a sequence {length}", whole[1].len());
    chats.refusal(&with(Long::Raise), &found);
    let skipped = chats.run(&IngestConfig { on_error: OnError::Skip, ..with(Long::Raise) });
    assert_eq!(
        (tokens(&skipped), skipped.left_out()),
        (vec![whole[0].clone()], vec!["a.jsonl, line 2".to_owned()])
    );
}

#[test]
fn the_template_of_a_model_is_in_one_file_or_two() {
    let config = json!({"bos_token": "<|begin|>", "eos_token": "<|end|>"}).to_string();
    let files =
        [("tokenizer_config.json", config.into_bytes()), ("chat_template.jinja", MARKED.as_bytes().to_vec())];
    let chats = Chats::new(MARKED, &[("a.jsonl", lines(&conversations()))]);
    let split = directory(&files);
    let names = |ingested: &Ingested| {
        let inputs = ingested.provenance.inputs[2..].iter().map(|input| input.name.clone());
        inputs.collect::<Vec<_>>()
    };
    for (given, other) in
        [("tokenizer_config.json", "chat_template.jinja"), ("chat_template.jinja", "tokenizer_config.json")]
    {
        let ingested = chats.run(&with(&split.path().join(given)));
        assert_eq!(texts(&ingested), expected());
        assert_eq!(names(&ingested), [given, other]);
    }
    // An older form of the same.
    let processor = directory(&[
        ("chat_template.json", json!({"chat_template": MARKED}).to_string().into_bytes()),
        ("tokenizer_config.json", model("{{ another }}")),
    ]);
    assert_eq!(texts(&chats.run(&with(&processor.path().join("chat_template.json")))), expected());
    fs::remove_file(split.path().join("tokenizer_config.json")).unwrap();
    chats.refusal(&with(&split.path().join("chat_template.jinja")), "it writes bos_token");
    fs::write(
        split.path().join("chat_template.jinja"),
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    )
    .unwrap();
    assert_eq!(texts(&chats.run(&with(&split.path().join("chat_template.jinja"))))[0].0, "Größe?日本");
}

#[test]
fn another_template_or_date_is_another_version_and_another_place_is_not() {
    let template = MARKED.replace("{{ bos_token }}", "{{ bos_token }}{{ strftime_now('%d %b %Y') }}");
    let chats = Chats::new(&template, &[("a.jsonl", lines(&conversations()))]);
    let dated = |date: &str| IngestConfig { chat_date: Some(date.parse().unwrap()), ..chats.config() };
    chats.refusal(&chats.config(), "`chat_date`: the chat template asks for the present date; give");
    chats.refusal(&IngestConfig { on_error: OnError::Skip, ..chats.config() }, "`chat_date`");
    let first = chats.run(&dated("2026-07-26"));
    assert!(texts(&first)[0].0.starts_with("<|begin|>26 Jul 2026<user>"), "{:?}", texts(&first)[0]);
    assert_ne!(chats.run(&dated("2026-07-27")).manifest.shards, first.manifest.shards);
    let elsewhere = directory(&[("tokenizer_config.json", model(&template))]);
    let moved = IngestConfig {
        chat_template: Some(elsewhere.path().join("tokenizer_config.json")),
        ..dated("2026-07-26")
    };
    assert_eq!(chats.run(&moved).manifest.id(), first.manifest.id());
    let stamp = || Source::open(chats.data.path(), &moved).unwrap().stamp();
    let before = stamp();
    fs::write(elsewhere.path().join("tokenizer_config.json"), model(&(template.clone() + "."))).unwrap();
    assert_ne!(stamp(), before, "an interrupted ingest does not continue with another template");
    assert_ne!(chats.run(&moved).manifest.id(), first.manifest.id());
}

#[test]
fn mistakes_of_settings_name_the_way_out() {
    let chats = Chats::new(MARKED, &[("a.jsonl", lines(&conversations()))]);
    let template = |text: &str| {
        fs::write(chats.model.path().join("tokenizer_config.json"), text).unwrap();
        chats.config()
    };
    chats.refusal(&IngestConfig { tokenizer: None, ..chats.config() }, "give the `tokenizer` of the model");
    chats.refusal(&IngestConfig { text_column: Some("a".into()), ..chats.config() }, "`messages_column`");
    chats.refusal(&IngestConfig { loss: Loss::All, ..sequential() }, "give a `chat_template`");
    chats.refusal(&IngestConfig { types: typed(&[("id", "Utf8")]).types, ..chats.config() }, "`types`");
    chats.refusal(
        &IngestConfig { messages_column: Some("chat".into()), ..chats.config() },
        "has no value of \"chat\"",
    );
    chats.refusal(&with(chats.model.path()), "is no file");
    chats.refusal(&template("{}"), "its key chat_template is missing");
    chats.refusal(&template("[]"), "it is no object of JSON");
    chats.refusal(&template(&String::from_utf8(model("{% for %}")).unwrap()), "is no Jinja");
    let texts = Chats::new(MARKED, &[("a.txt", b"a".to_vec())]);
    texts.refusal(&texts.config(), "`chat_template`: it means nothing for text");
    let table = Chats::new(MARKED, &[("a.csv", b"chat\na\n".to_vec())]);
    table.refusal(&table.config(), "has no column \"messages\"; its columns are chat");
    table.refusal(
        &IngestConfig { messages_column: Some("chat".into()), ..table.config() },
        "is text, and no JSON",
    );
}

fn conversation() -> impl proptest::strategy::Strategy<Value = Value> {
    let content = "[a-cé日 \\n<|>]{0,20}|<\\|end\\|>";
    let message = ("user|assistant|system", content).prop_map(|(role, content)| message(&role, &content));
    prop::collection::vec(message, 0..6).prop_map(|messages| json!({ "messages": messages }))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn packed_conversations_have_the_tokens_and_marks_of_single_ones_for_any_threads(
        rows in prop::collection::vec(conversation(), 1..60),
        length in 8..60u32,
    ) {
        let chats = Chats::new(MARKED, &[("a.jsonl", lines(&rows))]);
        let packed = |packing| IngestConfig { packing, sequence_length: Some(length), ..chats.config() };
        let path = chats.data.path();
        let Ok(single) = run(path, &chats.config(), 1) else { return Ok(()) };
        for (_, part) in texts(&single) {
            prop_assert!(part.ends_with("<|end|>"));
        }
        let whole = tokens(&single);
        let packing = Some(Strategy::BestFitDecreasing);
        let ingested = run(path, &packed(packing), 3).unwrap();
        let pieces = whole.iter().flat_map(|tokens| tokens.chunks(length as usize)).map(<[_]>::to_vec);
        prop_assert_eq!(sorted(tokens(&ingested)), sorted(pieces.collect()));
        prop_assert_eq!(run(path, &packed(packing), 1).unwrap().manifest.id(), ingested.manifest.id());
        let joined = whole.concat();
        if let Ok(ingested) = run(path, &packed(None), 2) {
            let sequences: Vec<_> = ingested.batches().iter().flat_map(|batch| {
                let tokens = batch.column(0).as_fixed_size_list().values().clone();
                let marks = batch.column_by_name("loss_mask").unwrap().as_fixed_size_list().values().clone();
                let tokens = tokens.as_primitive::<UInt16Type>().values().to_vec();
                tokens.into_iter().zip(marks.as_primitive::<UInt8Type>().values().to_vec()).collect::<Vec<_>>()
            }).collect();
            prop_assert_eq!(&sequences[..], &joined[..joined.len() - joined.len() % length as usize]);
        }
    }
}
