//! The two files of profiles, and what a profile in them asks for. Pure: texts in, decisions out.

use std::collections::HashMap;

use configparser::ini::Ini;

/// Settings that take a request, or several, before there are credentials. The first that a profile has is the
/// one that errors name.
const REQUESTED: [&str; 6] = [
    "web_identity_token_file",
    "role_arn",
    "sso_session",
    "sso_start_url",
    "sso_account_id",
    "login_session",
];

/// How a profile gives credentials.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// They stand in the files.
    Keys { key_id: String, secret_key: String, token: Option<String> },
    /// A command prints them.
    Process(String),
    /// Services give them, because of this setting.
    Requests(&'static str),
}

/// The sections of a file by name.
type Sections = HashMap<String, HashMap<String, Option<String>>>;

/// `credentials` and `config`.
pub(super) struct Files {
    credentials: Sections,
    config: Sections,
}

impl Files {
    pub(super) fn parse(credentials: String, config: String) -> Result<Files, (usize, String)> {
        let parse = |number, text| {
            let mut ini = Ini::new_cs();
            ini.set_inline_comment_symbols(Some(&[]));
            ini.read(text).map_err(|reason| (number, reason))
        };
        Ok(Files { credentials: parse(0, credentials)?, config: parse(1, config)? })
    }

    pub(super) fn profile(&self, name: &str) -> Option<Settings<'_>> {
        let in_config = match name {
            "default" => self.config.get(name).or_else(|| self.config.get("profile default")),
            _ => self.config.get(&format!("profile {name}")),
        };
        let sections: Vec<_> = self.credentials.get(name).into_iter().chain(in_config).collect();
        (!sections.is_empty()).then_some(Settings(sections))
    }

    /// A profile, and those from which it takes the credentials to assume its role: the last one has its own.
    pub(super) fn chain<'n>(&'n self, name: &'n str) -> Vec<(&'n str, Settings<'n>)> {
        let mut chain: Vec<(&str, Settings<'_>)> = Vec::new();
        let mut next = Some(name);
        while let Some(name) = next {
            let Some(settings) = self.profile(name) else { break };
            let source = settings.get("source_profile").filter(|_| settings.get("role_arn").is_some());
            chain.push((name, settings));
            next = source.filter(|source| chain.iter().all(|(seen, _)| seen != source));
        }
        chain
    }
}

/// The sections about one profile, the first of which wins.
pub(super) struct Settings<'f>(Vec<&'f HashMap<String, Option<String>>>);

impl<'f> Settings<'f> {
    pub(super) fn get(&self, key: &str) -> Option<&'f str> {
        let values = self.0.iter().filter_map(|section| section.get(key)?.as_deref());
        values.map(str::trim).find(|value| !value.is_empty())
    }

    /// How the profile of this name gives credentials, in the order of Amazon's own tools. A build that makes no
    /// requests takes a process in their place.
    pub(super) fn source(&self, name: &str, makes_requests: bool) -> Option<Source> {
        let owned = |key| self.get(key).map(str::to_owned);
        let process = owned("credential_process").map(Source::Process);
        let requested = REQUESTED.into_iter().find(|key| self.get(key).is_some());
        if let Some(setting) = requested {
            // Of a profile that is its own source, the process gives the credentials before the role.
            let is_whole = self.get("source_profile") != Some(name);
            let is_replaced = is_whole && (!makes_requests || setting == "login_session");
            return Some(process.filter(|_| is_replaced).unwrap_or(Source::Requests(setting)));
        }
        if let (Some(key_id), Some(secret_key)) = (owned("aws_access_key_id"), owned("aws_secret_access_key"))
        {
            return Some(Source::Keys { key_id, secret_key, token: owned("aws_session_token") });
        }
        process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(config: &str) -> Files {
        Files::parse(String::new(), config.to_owned()).expect("profiles")
    }

    fn source(settings: &str, makes_requests: bool) -> Option<Source> {
        let files = files(&format!("[profile me]\n{settings}\n"));
        files.profile("me").expect("a profile").source("me", makes_requests)
    }

    #[test]
    fn a_role_or_a_session_comes_before_keys_and_keys_before_a_process() {
        const KEYS: &str = "aws_access_key_id = k\naws_secret_access_key = s\n";
        const PROCESS: &str = "credential_process = p\n";
        const ROLE: &str = "role_arn = r\nsource_profile = you\n";
        let requests = |setting| Some(Source::Requests(setting));
        let process = Some(Source::Process("p".to_owned()));
        let keys = Some(Source::Keys { key_id: "k".to_owned(), secret_key: "s".to_owned(), token: None });
        let all = |words: &[&str]| words.concat();
        for makes_requests in [false, true] {
            assert_eq!(source(&all(&[KEYS, PROCESS]), makes_requests), keys);
            assert_eq!(source(PROCESS, makes_requests), process);
            assert_eq!(source("region = r", makes_requests), None);
            assert_eq!(source(&all(&[KEYS, ROLE]), makes_requests), requests("role_arn"));
            assert_eq!(source(&all(&[KEYS, "sso_session = x"]), makes_requests), requests("sso_session"));
            // The process is the way out that errors name for a console session.
            assert_eq!(source(&all(&["login_session = x\n", PROCESS]), makes_requests), process);
            let own = "role_arn = r\nsource_profile = me\n";
            assert_eq!(source(&all(&[own, PROCESS]), makes_requests), requests("role_arn"));
        }
        assert_eq!(source(&all(&[ROLE, PROCESS]), true), requests("role_arn"));
        // The way out of a build that makes no requests.
        assert_eq!(source(&all(&[ROLE, PROCESS]), false), process);
    }

    #[test]
    fn a_chain_of_roles_ends_at_the_profile_with_credentials_or_where_it_closes() {
        let files = files(
            "[profile a]\nrole_arn = 1\nsource_profile = b\n[profile b]\nrole_arn = 2\nsource_profile = c\n\
             [profile c]\nsso_session = s\nsource_profile = a\n\
             [profile x]\nrole_arn = 3\nsource_profile = y\n[profile y]\nrole_arn = 4\nsource_profile = x\n",
        );
        let names = |name| files.chain(name).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names("a"), ["a", "b", "c"]);
        assert_eq!(names("x"), ["x", "y"]);
        assert!(names("z").is_empty());
    }
}
