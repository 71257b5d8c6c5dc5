//! `wattline bench results`: the page of results, made by the very commands it shows.
//!
//! A list (TOML) names the sections: a title, some words, and the commands. Each command is run by
//! this program itself and stands above what it printed. Data that may not be committed are found
//! through `WATTLINE_SHARED`; a section whose data are not there says so.

use crate::failure::{Failure, Result};
use crate::output;
use anyhow::{Context, anyhow};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The list of sections
    #[arg(long, value_name = "FILE", default_value = "docs/results.toml")]
    list: PathBuf,
    /// The page to write
    #[arg(long, value_name = "FILE", default_value = "docs/src/reference/results.md")]
    page: PathBuf,
    /// Only these sections, by id; the others stay as they are on the page
    #[arg(long, value_delimiter = ',', value_name = "ID")]
    only: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    title: String,
    about: String,
    section: Vec<Section>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    /// What `--only` calls it.
    id: String,
    title: String,
    about: String,
    /// Under `WATTLINE_SHARED`, what must be there.
    #[serde(default)]
    needs: Vec<String>,
    /// A folder under `WATTLINE_SHARED`: each command is run for each of its files, as {file}.
    for_each_file_of: Option<String>,
    /// Without the word `wattline`.
    commands: Vec<String>,
}

/// How a command line names the folder of data.
const SHARED: &str = "$WATTLINE_SHARED";

pub(super) fn run(args: &Args) -> Result<()> {
    let list = read(&args.list)?;
    if let Some(id) = args.only.iter().find(|id| list.section.iter().all(|s| s.id != **id)) {
        let known: Vec<&str> = list.section.iter().map(|s| s.id.as_str()).collect();
        return Err(Failure::input(anyhow!(
            "--only: no section '{id}' in {}: there are {}",
            args.list.display(),
            known.join(", ")
        )));
    }
    let shared = std::env::var_os("WATTLINE_SHARED").map(PathBuf::from);
    let shared = shared.filter(|path| !path.as_os_str().is_empty());
    let before = fs::read_to_string(&args.page).unwrap_or_default();
    let mut page = format!("# {}\n\n{}\n", list.title, list.about.trim());
    let mut failed = Vec::new();
    for section in &list.section {
        let asked = args.only.is_empty() || args.only.contains(&section.id);
        let text = match kept(&before, &section.id) {
            Some(text) if !asked => text.to_owned(),
            None if !asked => continue,
            _ => {
                output::note(&format!("section {}", section.id));
                write_section(section, shared.as_deref(), &mut failed)?
            }
        };
        page += &format!("\n{}\n{}\n{END}\n", begin(&section.id), text.trim());
    }
    fs::write(&args.page, page)
        .with_context(|| format!("cannot write {}", args.page.display()))
        .map_err(Failure::Input)?;
    output::note(&format!("page: {}", args.page.display()));
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(anyhow!("{} commands failed: {}", failed.len(), failed.join("; "))))
}

fn read(path: &Path) -> Result<List> {
    let file = path.display();
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::Input)?;
    let list: List = toml::from_str(&text)
        .map_err(|error| Failure::input(anyhow!("{file}: {}", error.to_string().trim_end())))?;
    for (at, section) in list.section.iter().enumerate() {
        let simple = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let twice = list.section[..at].iter().any(|s| s.id == section.id);
        if section.id.is_empty() || !section.id.chars().all(simple) || twice {
            return Err(Failure::input(anyhow!(
                "{file}: field `section.id` is \"{}\": ids are words of letters, digits and \
                 hyphens, each once",
                section.id.chars().take(40).collect::<String>()
            )));
        }
        for command in &section.commands {
            if words(command).is_none() {
                return Err(Failure::input(anyhow!("{file}: a quote is not closed: {command}")));
            }
        }
    }
    Ok(list)
}

fn begin(id: &str) -> String {
    format!("<!-- section {id} -->")
}
const END: &str = "<!-- end -->";

/// What the page has for a section.
fn kept<'a>(page: &'a str, id: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&begin(id))?;
    Some(rest.split_once(END)?.0)
}

fn write_section(
    section: &Section,
    shared: Option<&Path>,
    failed: &mut Vec<String>,
) -> Result<String> {
    let mut text = format!("## {}\n\n{}\n", section.title, section.about.trim());
    let folder = section.for_each_file_of.as_ref();
    for needed in section.needs.iter().chain(folder) {
        if !shared.is_some_and(|shared| shared.join(needed).exists()) {
            text += &format!(
                "\nSkipped: `{SHARED}/{needed}` is not there; these data are other people's and \
                 not part of the repository.\n"
            );
            return Ok(text);
        }
    }
    for command in &section.commands {
        for command in for_each_file(command, folder, shared)? {
            output::note(&format!("  wattline {command}"));
            text += &format!("\n```sh\nwattline {command}\n```\n\n");
            match run_command(&command, shared) {
                Ok(printed) => text += &as_markdown(&printed),
                Err(error) => {
                    text += &format!("Failed: {error:#}\n");
                    failed.push(format!("wattline {command}"));
                }
            }
        }
    }
    text += &format!("\n<small>{}</small>\n", machine());
    Ok(text)
}

/// The command for each file of a folder, by name; itself, if there is no folder.
fn for_each_file(
    command: &str,
    folder: Option<&String>,
    shared: Option<&Path>,
) -> Result<Vec<String>> {
    let (Some(folder), Some(shared)) = (folder, shared) else {
        return Ok(vec![command.to_owned()]);
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(shared.join(folder))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    let one = |name: &String| command.replace("{file}", &format!("{SHARED}/{folder}/{name}"));
    Ok(names.iter().map(one).collect())
}

fn run_command(command: &str, shared: Option<&Path>) -> anyhow::Result<String> {
    let shared = shared.map_or_else(String::new, |path| path.display().to_string());
    let words = words(command).ok_or_else(|| anyhow!("a quote is not closed"))?;
    let words = words.into_iter().map(|word| word.replace(SHARED, &shared));
    let output = Command::new(std::env::current_exe()?).args(words).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let last = errors.lines().rev().find(|line| line.starts_with("error"));
        return Err(anyhow!("{}", last.unwrap_or("no reason given")));
    }
    Ok(String::from_utf8(output.stdout)? + &warnings(&errors))
}

/// What a command warned of belongs on the page too; notes and progress do not.
fn warnings(errors: &str) -> String {
    let lines = errors.lines().filter(|line| line.starts_with("warning: "));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Words as a shell splits them, with single and double quotes and nothing else; `None` where a
/// quote is not closed.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// Tables are Markdown already; other lines become paragraphs.
fn as_markdown(printed: &str) -> String {
    let mut text = String::new();
    let mut in_table = false;
    for line in printed.lines() {
        let table = line.starts_with('|');
        if table != in_table || !table {
            text.push('\n');
        }
        in_table = table;
        text += line.trim_end();
        text.push('\n');
    }
    text.trim_start_matches('\n').to_owned()
}

/// What ran it. No date: the same commit gives the same page but for timings.
fn machine() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let dirty =
        git(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "scenarios"]);
    let dirty = if dirty.is_some_and(|d| !d.is_empty()) { " with changes" } else { "" };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    format!(
        "wattline {}, commit {commit}{dirty}; {cores} cores, {}",
        env!("CARGO_PKG_VERSION"),
        model.map_or("processor unknown", |(_, name)| name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_does() {
        let split = |line| words(line).map(|w| w.join("|"));
        assert_eq!(split("a  'b c' d\"e f\"").as_deref(), Some("a|b c|de f"));
        assert_eq!(split("x --p 'a+b={}' ''").as_deref(), Some("x|--p|a+b={}|"));
        assert_eq!(split("a 'b"), None);
    }

    #[test]
    fn tables_stay_tables_and_lines_become_paragraphs() {
        let text = as_markdown("name: x\n| a |\n|---|\n| 1 |\nmean\n");
        assert_eq!(text, "name: x\n\n| a |\n|---|\n| 1 |\n\nmean\n");
    }

    #[test]
    fn warnings_come_with_the_result_and_notes_do_not() {
        let errors = "6 simulations\nwarning: seed 1: edf: 2 of 9 jobs never finish\nplot: x\n";
        assert_eq!(warnings(errors), "warning: seed 1: edf: 2 of 9 jobs never finish\n");
    }

    #[test]
    fn sections_are_found_on_a_page() {
        let page = format!("# T\n\n{}\nold\n{END}\n", begin("one"));
        assert_eq!(kept(&page, "one").map(str::trim), Some("old"));
        assert_eq!(kept(&page, "on"), None);
    }
}
