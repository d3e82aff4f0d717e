//! The public summary of training content, as Markdown. Pure.
//!
//! Sections and their order are those of the European Commission's template for Article 53(1)(d) of Regulation (EU) 2024/1689
//! (C(2025) 8311). The program fills in the samples that were read; the rest is as declared, or "Not declared".

use std::fmt::Write as _;

use shardd_store::training_data::{Amount, Modality, Unit, Version};

use super::Facts;
use super::about::{About, Dataset, Source};
use crate::human::{count, date};
use crate::plain::is_invisible;

const NOT_DECLARED: &str = "Not declared";

pub(super) fn page(facts: &Facts) -> String {
    let mut page = Page(String::new());
    let about = &facts.about;
    page.line("# Public summary of training content");
    page.line("Required by Article 53(1)(d) of Regulation (EU) 2024/1689 (AI Act).");
    page.fact("Version of the summary", about.summary.version.as_deref());
    page.fact("Last update", about.summary.updated.as_deref());
    general(&mut page, facts);
    sources(&mut page, facts);
    processing(&mut page, about);
    evidence(&mut page, facts);
    page.0
}

/// Markdown that grows.
struct Page(String);

impl Page {
    fn line(&mut self, text: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn fact(&mut self, name: &str, value: Option<&str>) {
        let value = value.filter(|value| !value.trim().is_empty());
        self.line(&format!("**{name}:** {}", value.map_or_else(|| NOT_DECLARED.to_owned(), escaped)));
    }

    fn answer(&mut self, question: &str, answer: Option<bool>) {
        self.fact(question, answer.map(|answer| if answer { "Yes" } else { "No" }));
    }
}

/// A text of a person as Markdown that shows it as it is.
fn escaped(text: &str) -> String {
    let mut shown = String::new();
    for c in text.trim().chars() {
        match c {
            c if c.is_whitespace() => shown.push(' '),
            c if c.is_control() || is_invisible(c) => shown.push(char::REPLACEMENT_CHARACTER),
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '\\' | '`' | '*' | '[' | ']' | '|' => {
                shown.push('\\');
                shown.push(c);
            }
            c => shown.push(c),
        }
    }
    shown
}

fn general(page: &mut Page, facts: &Facts) {
    let About { provider, model, data, .. } = &facts.about;
    page.line("## 1. General information");
    page.line("### 1.1. Provider identification");
    page.fact("Provider name and contact details", provider.name.as_deref());
    page.fact("Authorised representative name and contact details", provider.representative.as_deref());
    page.line("### 1.2. Model identification");
    page.fact("Versioned model name(s)", Some(model.names.join(", ")).as_deref());
    page.fact("Model dependencies", model.dependencies.as_deref());
    page.fact("Date of placement of the model on the Union market", model.placed_on_market.as_deref());
    page.line("### 1.3. Modalities, overall training data size and other characteristics");
    page.line(&modalities(facts));
    let latest = data.collected_until.clone().or_else(|| latest(facts));
    page.fact("Latest date of data acquisition/collection for model training", latest.as_deref());
    page.answer(
        "Is the model continuously trained on new or dynamic data after this date?",
        data.continuously_trained,
    );
    page.fact(
        "Description of the linguistic characteristics of the overall training data",
        data.languages.as_deref(),
    );
    page.fact("Other relevant characteristics of the overall training data", data.other.as_deref());
    page.fact("Additional comments", data.comments.as_deref());
}

/// The latest date that a dataset declares.
fn latest(facts: &Facts) -> Option<String> {
    facts.versions.iter().filter_map(|version| facts.about.of(&version.dataset).collected_until).max()
}

fn modalities(facts: &Facts) -> String {
    let mut table = String::from("| Modality | Training data size | Types of content |\n|---|---|---|");
    for modality in Modality::ALL {
        let mut sizes: Vec<(Unit, u64)> = Vec::new();
        let (mut contents, mut hours): (Vec<String>, Option<f64>) = (Vec::new(), None);
        for version in &facts.versions {
            let about = facts.about.of(&version.dataset);
            let own: Vec<&Amount> = version.amounts.iter().filter(|it| it.modality == modality).collect();
            if own.is_empty() {
                continue;
            }
            for Amount { unit, amount, .. } in own {
                match sizes.iter_mut().find(|(of, _)| of == unit) {
                    Some((_, sum)) => *sum = sum.saturating_add(*amount),
                    None => sizes.push((*unit, *amount)),
                }
            }
            contents.push(about.content.as_deref().map_or_else(
                || format!("{}: {}", escaped(&version.dataset), NOT_DECLARED.to_lowercase()),
                escaped,
            ));
            if matches!(modality, Modality::Audio | Modality::Video) {
                let part = version.samples_read as f64 / version.samples.max(1) as f64;
                hours = about.hours.map(|own| hours.unwrap_or(0.0) + own * part).or(hours);
            }
        }
        if sizes.is_empty() {
            continue;
        }
        let size = size(modality, &sizes, hours);
        write!(table, "\n| {} | {size} | {} |", modality.title(), contents.join("; ")).expect("text");
    }
    table
}

/// The template's range, if the amount is in its unit, and the amount itself.
fn size(modality: Modality, sizes: &[(Unit, u64)], hours: Option<f64>) -> String {
    let mut parts = Vec::new();
    let of = |wanted: Unit| sizes.iter().find(|(unit, _)| *unit == wanted).map(|(_, amount)| *amount as f64);
    let range = match modality {
        Modality::Text => of(Unit::Tokens).map(|tokens| match tokens {
            few if few < 1e9 => "Less than 1 billion tokens",
            some if some <= 1e13 => "1 billion to 10 trillion tokens",
            _ => "More than 10 trillion tokens",
        }),
        Modality::Image => of(Unit::Pictures).map(|pictures| match pictures {
            few if few < 1e6 => "Less than 1 million images",
            some if some <= 1e9 => "1 million to 1 billion images",
            _ => "More than 1 billion images",
        }),
        Modality::Audio | Modality::Video => hours.map(|hours| match hours {
            few if few < 1e4 => "Less than 10 000 hours",
            some if some <= 1e6 => "10 000 to 1 million hours",
            _ => "More than 1 million hours",
        }),
        Modality::Other => None,
    };
    parts.extend(range.map(str::to_owned));
    parts.extend(hours.map(|hours| format!("{hours:.1} hours")));
    parts.extend(sizes.iter().map(|(unit, amount)| format!("{} {}", count(*amount), unit.noun())));
    parts.join("; ")
}

fn sources(page: &mut Page, facts: &Facts) {
    let of = |source: Source| -> Vec<(&Version, Dataset)> {
        let with = facts.versions.iter().map(|version| (version, facts.about.of(&version.dataset)));
        with.filter(|(_, about)| about.source == Some(source)).collect()
    };
    let all_declared = facts.versions.iter().all(|version| facts.about.of(&version.dataset).source.is_some());
    let is_used = |found: &[(&Version, Dataset)]| match (found.is_empty(), all_declared) {
        (false, _) => Some(true),
        (true, true) => Some(false),
        (true, false) => None,
    };
    page.line("## 2. List of data sources");

    // A section that asks whether there are datasets of a source, and lists them.
    let section = |page: &mut Page, heading: &str, source: Source, question: &str, title: &str| {
        page.line(heading);
        let found = of(source);
        page.answer(question, is_used(&found));
        listed(page, "Modality(ies) of the content covered", title, &found);
    };
    section(
        page,
        "### 2.1. Publicly available datasets",
        Source::Public,
        "Have you used publicly available datasets to train the model?",
        "List of publicly available datasets",
    );
    page.line("### 2.2. Private non-publicly available datasets obtained from third parties");
    section(
        page,
        "#### 2.2.1. Datasets commercially licensed by rightsholders or their representatives",
        Source::Licensed,
        "Have you concluded transactional commercial licensing agreement(s) with rightsholder(s) or with their representatives?",
        "Datasets",
    );
    section(
        page,
        "#### 2.2.2. Private datasets obtained from other third parties",
        Source::ThirdParty,
        "Have you obtained private datasets from third parties that are not licensed as described in section 2.2.1?",
        "Datasets",
    );

    page.line("### 2.3. Data crawled and scraped from online sources");
    let found = of(Source::Crawled);
    page.answer("Were crawlers used by the provider or on its behalf?", is_used(&found));
    for (_, about) in &found {
        page.fact("Crawler name(s)/identifier(s)", Some(about.crawlers.join(", ")).as_deref());
        page.fact("Purposes of the crawler(s)", about.crawler_purpose.as_deref());
        page.fact("General description of crawler behaviour", about.crawler_behaviour.as_deref());
        page.fact("Period of data collection", period(about).as_deref());
        page.fact("Summary of the most relevant domain names crawled", about.domains.as_deref());
    }
    listed(page, "Type of modality covered", "Crawled datasets", &found);

    page.line("### 2.4. User data");
    let found = of(Source::User);
    let with_model = |wanted| {
        let of = found.iter().filter(move |(_, about)| about.is_model_interaction == Some(wanted));
        match (is_used(&found), of.count()) {
            (Some(true), 0) if found.iter().any(|(_, about)| about.is_model_interaction.is_none()) => None,
            (Some(true), count) => Some(count > 0),
            (other, _) => other,
        }
    };
    page.answer(
        "Was data from user interactions with the AI model used to train the model?",
        with_model(true),
    );
    page.answer(
        "Was data collected from user interactions with other services or products used to train the model?",
        with_model(false),
    );
    for (_, about) in &found {
        page.fact("Services or products through which the data was collected", about.services.as_deref());
    }
    listed(page, "Type of modality covered", "Datasets", &found);

    page.line("### 2.5. Synthetic data");
    let found = of(Source::Synthetic);
    page.answer("Was synthetic AI-generated data used to train the model?", is_used(&found));
    for (_, about) in &found {
        page.fact("AI model(s) used to generate the data", Some(about.generators.join(", ")).as_deref());
    }
    listed(page, "Modality of the synthetic data", "Datasets", &found);

    section(
        page,
        "### 2.6. Other sources of data",
        Source::Other,
        "Have data sources other than those described in sections 2.1 to 2.5 been used?",
        "Datasets",
    );

    if !all_declared {
        let undeclared =
            facts.versions.iter().filter(|version| facts.about.of(&version.dataset).source.is_none());
        let names: Vec<String> = undeclared.map(|version| escaped(&version.dataset)).collect();
        page.line(&format!("**Datasets without a declared source:** {}", names.join(", ")));
    }
}

fn listed(page: &mut Page, modalities: &str, title: &str, found: &[(&Version, Dataset)]) {
    if found.is_empty() {
        return;
    }
    let mut covered: Vec<Modality> = found.iter().flat_map(|(version, _)| version.modalities()).collect();
    covered.sort_unstable();
    covered.dedup();
    let covered: Vec<&str> = covered.into_iter().map(Modality::title).collect();
    page.fact(modalities, Some(&covered.join(", ")));
    page.line(&format!("**{title}:**"));
    let mut lines = String::new();
    for (version, about) in found {
        let name = about.title.as_deref().unwrap_or(&version.dataset);
        let mut parts = vec![escaped(name)];
        parts.extend(about.description.as_deref().map(escaped));
        parts.extend(about.url.as_deref().map(|url| format!("<{}>", url.replace(['<', '>', ' ', '\n'], ""))));
        parts.extend(period(about).map(|period| format!("collected {}", escaped(&period))));
        parts.push(format!(
            "licence: {}",
            about.license.as_deref().map_or(NOT_DECLARED.to_lowercase(), escaped)
        ));
        parts.extend(about.creator.as_deref().map(|creator| format!("by {}", escaped(creator))));
        let read = format!("{} of {} samples read", count(version.samples_read), count(version.samples));
        parts.push(format!("{read}, version `{}`", version.version.short()));
        writeln!(lines, "- {}", parts.join("; ")).expect("text");
    }
    page.line(lines.trim_end());
}

fn period(about: &Dataset) -> Option<String> {
    match (&about.collected_from, &about.collected_until) {
        (None, None) => None,
        (from, until) => {
            let or_unknown = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
            Some(format!("{} to {}", or_unknown(from), or_unknown(until)))
        }
    }
}

fn processing(page: &mut Page, about: &About) {
    let processing = &about.processing;
    page.line("## 3. Data processing aspects");
    page.line("### 3.1. Respect of reservation of rights from text and data mining exception or limitation");
    page.answer(
        "Are you a signatory of the Code of Practice for general-purpose AI models?",
        processing.code_of_practice,
    );
    page.fact(
        "Measures implemented before model training to respect reservations of rights",
        processing.reservations_of_rights.as_deref(),
    );
    page.line("### 3.2. Removal of illegal content");
    page.fact("General description of measures taken", processing.illegal_content.as_deref());
    page.line("### 3.3. Other information");
    page.fact("Other relevant information about data processing", processing.other.as_deref());
}

/// Beside the template: what lets a reader check the rest.
fn evidence(page: &mut Page, facts: &Facts) {
    page.line("## Annex: evidence");
    page.line(
        "Names of versions, plans, records and weights are BLAKE3 digests. A version's name commits to all of its samples; the root \
         of an epoch commits to each sample that was read and its position.",
    );
    for training in &facts.trainings {
        let mut lines = String::new();
        let mut fact = |name: &str, value: String| writeln!(lines, "- {name}: {value}").expect("text");
        if let Some(run) = &training.run {
            fact("run", escaped(run));
        }
        if let Some(record) = training.record {
            fact("record", format!("`{record}`"));
        }
        fact("version", format!("`{}`", training.version));
        fact("plan", format!("`{}`", training.plan));
        if let (Some(from), Some(until)) = (training.from, training.until) {
            fact("trained", format!("{} to {} (UTC)", date(from), date(until)));
        }
        if let Some(ending) = &training.ending {
            fact("ending", format!("{}{}", escaped(ending), training.caution()));
        }
        if let Some(weights) = &training.weights {
            fact("weights", format!("`{weights}`"));
        }
        fact(
            "samples read",
            format!("{} in {} epochs", count(training.samples_read()), training.epochs.len()),
        );
        if training.steps_unknown > 0 {
            fact("steps of which the samples are not recorded", count(training.steps_unknown));
        }
        for (epoch, root) in training.epochs.iter().filter_map(|epoch| Some((epoch.epoch, epoch.root?))) {
            fact(&format!("root of epoch {epoch}"), format!("`{root}`"));
        }
        page.line(lines.trim_end());
    }
}
