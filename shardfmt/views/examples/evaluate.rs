//! Evaluates predicates over an Arrow IPC file: `evaluate TABLE.arrow PREDICATES.txt [REPEATS]`.
//!
//! For each line of the second file it prints `ok` and t, f or n for each row, or `error` and the message.
//! With repeats it prints the least seconds of a filter over all record batches and the number of kept rows
//! instead.

use std::error::Error;
use std::fs::{File, read_to_string};
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::ipc::reader::FileReader;
use shardd_views::expr::Predicate;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [table, predicates, repeats @ ..] = arguments.as_slice() else {
        return Err("usage: evaluate TABLE.arrow PREDICATES.txt [REPEATS]".into());
    };
    let reader = FileReader::try_new(File::open(table)?, None)?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    for text in read_to_string(predicates)?.lines() {
        let line = match repeats.first() {
            None => answers(text, &schema, &batches),
            Some(repeats) => seconds(text, &schema, &batches, repeats.parse()?),
        };
        match line {
            Ok(line) => println!("ok {line}"),
            Err(error) => println!("error {}", error.to_string().replace('\n', " / ")),
        }
    }
    Ok(())
}

fn answers(text: &str, schema: &Schema, batches: &[RecordBatch]) -> Result<String, Box<dyn Error>> {
    let predicate = Predicate::parse(text, schema)?;
    let mut answers = String::new();
    for batch in batches {
        let values = predicate.evaluate(batch)?;
        answers.extend(values.iter().map(|value| value.map_or('n', |value| if value { 't' } else { 'f' })));
    }
    Ok(answers)
}

fn seconds(
    text: &str,
    schema: &Schema,
    batches: &[RecordBatch],
    repeats: u32,
) -> Result<String, Box<dyn Error>> {
    let predicate = Predicate::parse(text, schema)?;
    let mut least = f64::INFINITY;
    let mut kept = 0;
    for _ in 0..repeats {
        let start = Instant::now();
        kept = 0;
        for batch in batches {
            kept += predicate.evaluate(batch)?.true_count();
        }
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(format!("{least:.4} {kept}"))
}
