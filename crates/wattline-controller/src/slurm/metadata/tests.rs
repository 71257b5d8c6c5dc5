use super::*;
use proptest::prelude::*;

const SUBMIT: f64 = 1_794_786_093.0;

fn zone() -> TimeZone {
    TimeZone::fixed(jiff::tz::offset(1))
}

fn of_script(text: &str) -> Told {
    script(text.as_bytes(), When { submit: Timestamp::from_seconds(SUBMIT), zone: &zone() })
}

fn of_comment(text: &str) -> Told {
    comment(text, When { submit: Timestamp::from_seconds(SUBMIT), zone: &zone() })
}

fn of_gate(text: &str) -> Option<Told> {
    admin_comment(text, When { submit: Timestamp::from_seconds(SUBMIT), zone: &zone() })
}

fn after(seconds: f64) -> Option<Timestamp> {
    Some(Timestamp::from_seconds(SUBMIT + seconds))
}

/// The complaints as one text, for comparing.
fn said(told: &Told) -> Vec<String> {
    told.complaints.iter().map(ToString::to_string).collect()
}

#[test]
fn everything_at_once() {
    let told = of_script(
        "#!/bin/bash\n#SBATCH --gres=gpu:4\n\n#WATTLINE deadline=6h weight=2.5 gpus=1-8:4 # soon\r\n\
         # a remark\n#WATTLINE\tworkload=resnet50/imagenet+x epochs=90 samples=1281167\n\
         #WATTLINE batch=256-1024 elasticity=malleable save=30s load=1.5min checkpoint=usr1\n\
         python train.py\n#WATTLINE weight=9\n",
    );
    assert_eq!(said(&told), [""; 0]);
    let expected = Asked {
        deadline: after(6.0 * 3600.0),
        weight: Some(EurosPerSecond::new(2.5 / 3600.0)),
        gpus: Some(Range { min: 1, max: 8, requested: Some(4) }),
        batch: Some(Range { min: 256, max: 1024, requested: None }),
        workload: Some("resnet50/imagenet+x".into()),
        work: Some(Work(90.0 * 1_281_167.0)),
        elasticity: Some(Elasticity::Malleable),
        save: Some(Seconds::new(30.0)),
        load: Some(Seconds::new(90.0)),
        checkpoint: Some(Checkpoint::Usr1),
        hold: None,
    };
    assert_eq!(told.asked, expected);
}

#[test]
fn deadlines_in_all_forms() {
    for (text, seconds) in [
        ("6h", 21_600.0),
        ("+6h", 21_600.0),
        ("90min", 5400.0),
        ("1.5d", 129_600.0),
        ("now", 0.0),
        ("now+2hours", 7200.0),
        ("now+1hour", 3600.0),
        ("now+90", 90.0),
        ("now+3days", 259_200.0),
        ("now+30min", 1800.0),
        ("now+30minutes", 1800.0),
        // 1794786093 is 2026-11-15T23:41:33Z, and the site is one hour ahead.
        ("2026-11-16T08:00:00Z", 29_907.0),
        ("2026-11-16T08:00:00+01:00", 26_307.0),
        ("2026-11-16T08:00", 26_307.0),
        ("2026-11-16T08:00:00", 26_307.0),
    ] {
        let told = of_comment(&format!("deadline={text}"));
        assert_eq!((told.asked.deadline, said(&told)), (after(seconds), vec![]), "{text}");
    }
    for text in [
        "",
        "6",
        "-6h",
        "soon",
        "2026-11-16",
        "2020-01-01T00:00",
        "now-1hour",
        "now+x",
        "nowhere",
        "1e300h",
        "NaNh",
        "infs",
        "99999w",
        "2026-13-45T99:99",
        "now+99999999999",
        "+",
    ] {
        let told = of_comment(&format!("deadline={text}"));
        assert!(told.asked.deadline.is_none() && told.complaints.len() == 1, "{text}: {told:?}");
    }
}

#[test]
fn a_complaint_never_loses_the_rest() {
    let told = of_script("#WATTLINE deadlin=6h weight=many gpus=8-1 colour weight2= workload=ok\n");
    assert_eq!(told.asked, Asked { workload: Some("ok".into()), ..Asked::default() });
    let keys: Vec<&str> = told.complaints.iter().map(|c| c.key.as_str()).collect();
    assert_eq!(keys, ["deadlin", "colour", "weight2", "weight", "gpus"]);
}

#[test]
fn values_out_of_range_are_left_out() {
    for text in [
        "weight=-1",
        "weight=nan",
        "weight=inf",
        "weight=1e400",
        "gpus=0",
        "gpus=-4",
        "gpus=1-",
        "gpus=4:8",
        "gpus=+4",
        "gpus=99999999999",
        "batch=x",
        "work=0",
        "work=-1",
        "epochs=3",
        "samples=3",
        "elasticity=Rigid",
        "save=30",
        "save=2d",
        "load=-1s",
        "checkpoint=USR1",
        "workload=",
        "workload=a b=c",
        "workload=<b>x</b>",
        "workload=$(reboot)",
        "workload=é",
    ] {
        let told = of_comment(text);
        assert!(!told.complaints.is_empty(), "{text}");
        assert!(
            told.asked.weight.is_none() && told.asked.gpus.is_none() && told.asked.work.is_none(),
            "{text}"
        );
    }
    let long = of_comment(&format!("workload={}", "a".repeat(65)));
    assert_eq!(long.asked, Asked::default());
}

#[test]
fn comments_about_something_else_are_left_alone() {
    for text in [
        "",
        "my best run",
        "see=ticket 17",
        "{\"owner\": \"x\"}",
        "{broken",
        "<b>hello</b>",
        "{}",
        "[1]",
    ] {
        assert_eq!(of_comment(text), Told::default(), "{text}");
    }
}

#[test]
fn comments_may_be_json() {
    let told = of_comment(r#"{"deadline": "6h", "gpus": 4, "owner": {"x": 1}, "weight": 2.5}"#);
    assert_eq!((told.asked.deadline, said(&told)), (after(21_600.0), vec![]));
    assert_eq!(told.asked.gpus, Some(Range { min: 4, max: 4, requested: None }));
    let told =
        of_comment(r#"{"owner": "x", "wattline": {"gpus": "1-8", "colour": 1, "work": [1]}}"#);
    assert_eq!(told.asked.gpus, Some(Range { min: 1, max: 8, requested: None }));
    assert_eq!(told.complaints.len(), 2);
    assert_eq!(of_comment(r#"{"deadline": "6h", "#).complaints.len(), 1);
    assert_eq!(of_comment(r#"{"wattline": 5}"#).complaints.len(), 1);
}

#[test]
fn the_gates_own_form() {
    let told = of_gate("wattline/1 deadline=6h weight=2 ; weight=3 gpus=2").expect("ours");
    assert_eq!(told.asked.weight, Some(EurosPerSecond::new(3.0 / 3600.0)));
    assert_eq!((told.asked.deadline, said(&told)), (after(21_600.0), vec![]));
    let told = of_gate("wattline/1 deadline=6h ; {\"weight\": 3}").expect("ours");
    assert_eq!((told.asked.weight.is_some(), said(&told)), (true, vec![]));
    let told = of_gate("wattline/1 ; my best run").expect("ours");
    assert_eq!(told, Told::default());
    let told = of_gate("wattline/1 hold=user gpus=2").expect("ours");
    assert_eq!((told.asked.hold, said(&told)), (Some(true), vec![]));
    assert_eq!(of_gate("wattline/1"), Some(Told::default()));
    assert_eq!(of_gate("wattline/1 nodes=user"), Some(Told::default()));
    assert_eq!(of_gate("wattline/1 nodes=3").expect("ours").complaints.len(), 1);
    assert_eq!(of_gate("wattline/1 deadline=6h cut=1").expect("ours").complaints.len(), 1);
    for other in ["", "deadline=6h", "wattline/10 deadline=6h", " wattline/1"] {
        assert_eq!(of_gate(other), None, "{other}");
    }
}

#[test]
fn only_the_leading_comments_of_a_script_count() {
    assert_eq!(of_script("#!/bin/sh\necho\n#WATTLINE weight=1\n"), Told::default());
    let late = format!("{}#WATTLINE weight=1\n", "#\n".repeat(MOST_SCRIPT_BYTES / 2));
    assert_eq!(of_script(&late), Told::default());
    assert_eq!(of_script("#WATTLINEweight=1\n").asked, Asked::default());
    let near = of_script("# wattline weight=1\n# about wattline\n#WATTLINE gpus=2");
    assert_eq!(
        (near.asked.weight, near.asked.gpus.is_some(), near.complaints.len()),
        (None, true, 1)
    );
    assert_eq!(of_script("\u{feff}#WATTLINE gpus=2"), Told::default());
}

#[test]
fn twice_is_said() {
    let told = of_script("#WATTLINE weight=1\n#WATTLINE weight=2\n");
    assert_eq!(told.asked.weight, Some(EurosPerSecond::new(2.0 / 3600.0)));
    assert_eq!(said(&told), ["weight: is given twice, the last one counts"]);
}

#[test]
fn nasty_texts_are_data() {
    let megabyte = "x".repeat(1 << 20);
    for value in [
        "$(reboot)",
        "`id`",
        "';DROP TABLE jobs;--",
        "\u{1b}[31mred",
        "a\0b",
        "<script>alert(1)</script>",
        "\u{202e}gnp",
        megabyte.as_str(),
        "%s%n",
        "../../etc/passwd",
        "\"quoted\"",
    ] {
        for told in [
            of_script(&format!("#WATTLINE workload={value} {value}=1 gpus=2\n")),
            of_comment(&format!("workload={value} {value}=1 gpus=2")),
            of_gate(&format!("wattline/1 workload={value} gpus=2 ; {value}=1 weight=1"))
                .expect("ours"),
        ] {
            for complaint in &told.complaints {
                let text = complaint.to_string();
                assert!(text.len() < 600, "{}", text.len());
                assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
                assert!(!text.contains('\u{202e}'), "{text:?}");
            }
            // Names of paths are names of workloads too; nobody opens them.
            let odd = told.asked.workload.as_deref();
            assert!(odd.is_none() || odd == Some("../../etc/passwd"), "{odd:?}");
        }
    }
}

proptest! {
    #![proptest_config(wattline_testing::cases(2000, 1))]

    #[test]
    fn any_text_gives_bounded_complaints_and_sound_values(
        text in "\\PC{0,200}|(#WATTLINE )?((deadline|weight|gpus|work|save|batch|workload|x)=[0-9a-z+:.TZ$({<\u{0}\u{1b}-]{0,12} ?\n?){0,8}"
    ) {
        for told in [of_script(&text), of_comment(&text), of_gate(&format!("wattline/1 {text}")).unwrap_or_default()] {
            prop_assert!(told.complaints.len() <= MOST_COMPLAINTS);
            for complaint in &told.complaints {
                let text = complaint.to_string();
                prop_assert!(text.len() < 2000 && !text.contains(|c: char| c.is_control()), "{:?}", text);
            }
            prop_assert!(told.asked.deadline.is_none_or(|d| d >= Timestamp::from_seconds(SUBMIT)));
            prop_assert!(told.asked.weight.is_none_or(|w| w.is_finite() && w.get() >= 0.0));
            for range in [told.asked.gpus, told.asked.batch].into_iter().flatten() {
                prop_assert!(1 <= range.min && range.min <= range.max);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_script(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let zone = zone();
        let when = When { submit: Timestamp::from_seconds(SUBMIT), zone: &zone };
        let _ = script(&bytes, when);
    }
}
