//! Functions of users, including wrong and endless ones.

use super::*;

fn function(name: &str, code: &str) -> Function {
    Function { name: name.to_owned(), code: code.to_owned() }
}

fn message(data: &str) -> Input {
    Input {
        data: Bytes::from(data.to_owned().into_bytes()),
        attributes: [("a".to_owned(), "1".to_owned())].into(),
        ..Input::default()
    }
}

/// Applies one function, `f`, to one message.
async fn one(code: &str, input: Input) -> Transformed {
    let functions = [function("f", code)].into();
    let mut all = Transforms::new(1).apply(functions, vec![input], usize::MAX).await.expect("answered");
    all.remove(0)
}

async fn fault(code: &str) -> String {
    match one(code, message("x")).await {
        Err((0, Fault::Failed(message))) => message,
        other => panic!("{code}: {other:?}"),
    }
}

/// Sample in Google's overview of user-defined functions: data is JSON, a field of which is removed.
#[tokio::test]
async fn a_function_changes_data_and_attributes() {
    let code = "function f(message, metadata) {
        const data = JSON.parse(message.data);
        delete data.ssn;
        message.data = JSON.stringify(data);
        message.attributes['seen'] = metadata.message_id + ' ' + metadata.publish_time + ' ' + metadata.ordering_key;
        return message;
    }";
    let input = Input {
        message_id: Some("id".into()),
        publish_time: Some("2024-05-01T00:00:00Z".into()),
        ordering_key: Some("k".into()),
        ..message(r#"{"name":"Żółw","ssn":"12"}"#)
    };
    let output = one(code, input).await.expect("no fault").expect("a message");
    assert_eq!(output.data, r#"{"name":"Żółw"}"#);
    let expected = [("a", "1"), ("seen", "id 2024-05-01T00:00:00Z k")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(output.attributes, expected.into());
}

#[tokio::test]
async fn null_filters_and_attributes_that_are_left_out_are_removed() {
    assert_eq!(one("function f(m) { return null; }", message("x")).await, Ok(None));
    let bare = one("const f = ({ data }) => ({ data: data + '!' });", message("x")).await;
    assert_eq!(bare, Ok(Some(Output { data: "x!".into(), attributes: BTreeMap::new() })));
    let named = Input { attributes: [("__proto__".to_owned(), "p".to_owned())].into(), ..message("x") };
    let same = one("function f(m) { return m; }", named.clone()).await.expect("no fault").expect("a message");
    assert_eq!(same.attributes, named.attributes);
    let missing = one("function f(m, d) { return { data: Object.keys(d).join() }; }", message("x")).await;
    assert_eq!(missing.expect("no fault").map(|output| output.data), Some(String::new()));
}

#[tokio::test]
async fn functions_are_applied_in_their_order_until_one_filters() {
    let append = |what: &str| function("f", &format!("function f(m) {{ m.data += '{what}'; return m; }}"));
    let odd = function("g", "function g(m) { return m.data.length % 2 ? null : m; }");
    let transforms = Transforms::new(1);
    let chain = [append("b"), append("c"), odd].into();
    let all = transforms.apply(chain, vec![message("a"), message("aa")], usize::MAX).await.expect("answered");
    assert_eq!(all[0], Ok(None));
    assert_eq!(all[1].as_ref().expect("no fault").as_ref().map(|output| output.data.as_str()), Some("aabc"));
    let chain = [append("b"), function("f", "function f() { throw new Error('no'); }")].into();
    let all = transforms.apply(chain, vec![message("a")], usize::MAX).await.expect("answered");
    assert_eq!(all[0], Err((1, Fault::Failed("Error: no".into()))));
    let counted: Vec<u64> = transforms.stats.results.iter().map(Counter::get).collect();
    assert_eq!(counted, [1, 1, 1, 0]);
}

#[tokio::test]
async fn an_invalid_result_is_a_fault_that_describes_it() {
    for (code, expected) in [
        ("function f(m) { throw new TypeError('bad'); }", "TypeError: bad"),
        ("function f(m) { throw 'text'; }", "text"),
        ("function f(m) { return m.data.no.such; }", "TypeError: cannot read property"),
        ("function f(m) { }", "returned undefined, not a message or null"),
        ("function f(m) { return 'text'; }", "returned string, not a message or null"),
        ("async function f(m) { return m; }", "returned"),
        ("function f(m) { return {}; }", "data is undefined, not a string"),
        ("function f(m) { return { data: 5 }; }", "data is int, not a string"),
        ("function f(m) { return { data: '', attributes: 5 }; }", "attributes are int, not an object"),
        ("function f(m) { return { data: '', attributes: { n: 5 } }; }", "attribute n is int, not a string"),
        ("function f(m) { return { get data() { throw new Error('late'); } }; }", "Error: late"),
        ("function f(m) { return f(m) + 1; }", "call stack"),
        ("function f(m) { let s = m.data; for (;;) s += s; }", ""),
        ("function f(m) { return { data: 'x'.repeat(2 ** 27) }; }", "out of memory"),
        ("function f(m) { require('fs'); }", "require is not defined"),
        ("function f(m) { return fetch('http://127.0.0.1'); }", "fetch is not defined"),
        ("function f(m) { std.exit(1); }", "std is not defined"),
    ] {
        let message = fault(code).await;
        assert!(message.contains(expected), "{code}: {message}");
    }
    let binary = Input { data: Bytes::from_static(b"\xff"), ..Input::default() };
    let Err((0, Fault::Failed(why))) = one("function f(m) { return m; }", binary).await else {
        panic!("bytes are no string");
    };
    assert!(why.contains("not UTF-8"), "{why}");
    let long = fault("function f(m) { throw new Error('y'.repeat(100000)); }").await;
    assert!(long.len() < 1000, "{} bytes", long.len());
}

#[tokio::test]
async fn a_function_is_looked_at_before_it_is_used() {
    let transforms = Transforms::new(1);
    let check = async |name: &str, code: &str| {
        transforms.check(function(name, code)).await.expect("answered").map_err(|fault| fault.message().to_owned())
    };
    assert_eq!(check("f", "function f(m) { return m; }").await, Ok(()));
    assert_eq!(check("g", "const g = m => m;").await, Ok(()));
    for (name, code, expected) in [
        ("f", "function f(m) { return", "the code cannot be run: SyntaxError"),
        ("g", "function f(m) { return m; }", "the code does not define the function g: ReferenceError"),
        ("f", "var f = 5;", "f is not a function, it is int"),
        ("f(1)", "function f(m) { return m; }", "'f(1)' is not a name of a function"),
        ("f", "throw new Error('at once')", "Error: at once"),
        ("f", "import x from 'x'; function f(m) { return m; }", "SyntaxError"),
        ("f", "for (;;);", "longer than 500 ms"),
    ] {
        let message = check(name, code).await.expect_err("refused");
        assert!(message.contains(expected), "{name}, {code}: {message}");
    }
}

#[tokio::test]
async fn a_function_has_half_a_second_and_the_next_message_is_as_if_nothing_had_been() {
    let transforms = Transforms::new(1);
    let code =
        "let calls = 0; function f(m) { if (m.data == 'loop') for (;;); calls += 1; m.data += calls; return m; }";
    let began = Instant::now();
    let messages = vec![message("a"), message("loop"), message("b")];
    let all = transforms.apply([function("f", code)].into(), messages, usize::MAX).await.expect("answered");
    assert!((400..5_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    let data: Vec<_> =
        all.iter().map(|one| one.as_ref().map(|output| output.as_ref().map(|o| o.data.as_str()))).collect();
    assert_eq!((&data[0], &data[2]), (&Ok(Some("a1")), &Ok(Some("b1"))));
    assert!(matches!(&all[1], Err((0, Fault::TimedOut(_)))), "{:?}", all[1]);
    // An engine without a failure is reused; the values of its variables are not guaranteed.
    let all = transforms.apply([function("f", code)].into(), vec![message("c")], usize::MAX).await.expect("answered");
    assert_eq!(all[0].as_ref().expect("no fault").as_ref().map(|output| output.data.as_str()), Some("c2"));
}

/// A thread that is overdue is replaced, and other calls continue; once it returns, it ends. Its functions are not run
/// in the meantime. The clock of the runtime is paused, so that half a second of the thread is longer than any time
/// limit of the caller.
#[tokio::test(start_paused = true)]
async fn a_thread_that_does_not_come_back_is_replaced() {
    let transforms = Transforms::new(1);
    let endless = "function f(m) { for (;;); }";
    let same = "function f(m) { return m; }";
    let unanswered =
        transforms.apply([function("f", endless)].into(), vec![message("x")], usize::MAX).await.expect_err("too long");
    assert_eq!(unanswered, Unanswered::Endless);
    assert_eq!(transforms.stuck.count(), 1);
    let again =
        transforms.apply([function("f", endless)].into(), vec![message("y")], usize::MAX).await.expect_err("not run");
    assert_eq!((again, transforms.stuck.count()), (Unanswered::Endless, 1), "it costs no other thread");
    assert_eq!(transforms.stats.results[TIMED_OUT].get(), 2);
    tokio::time::resume();
    let all = transforms.apply([function("f", same)].into(), vec![message("x")], usize::MAX).await.expect("answered");
    assert!(matches!(&all[0], Ok(Some(_))), "{all:?}");
    let ended = async {
        while transforms.stuck.count() > 0 || transforms.threads.load(Ordering::Relaxed) > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), ended).await.expect("it ends in time");
    assert_eq!(transforms.places.available_permits(), 1);
}

#[tokio::test]
async fn the_results_of_a_call_are_bounded_while_they_are_gathered() {
    let grow = function("f", "function f(m) { return { data: m.data.repeat(50) }; }");
    let transforms = Transforms::new(1);
    let messages = || (0..1000).map(|_| message("x")).collect::<Vec<_>>();
    let all = transforms.apply([grow.clone()].into(), messages(), 120).await.expect("answered");
    assert_eq!(all.len(), 3, "the third one exceeds the limit");
    let counted: u64 = transforms.stats.results.iter().map(Counter::get).sum();
    assert_eq!(counted, 3, "no function runs for the others");
    let all = transforms.apply([grow].into(), messages(), 50_000).await.expect("answered");
    assert_eq!(all.len(), 1000);
}

#[tokio::test]
async fn a_function_returns_at_most_a_message() {
    let long = format!("function f() {{ return {{ data: 'x'.repeat({}) }}; }}", OUTPUT_BYTES_MAX);
    let output = one(&long, message("x")).await.expect("no fault").expect("a message");
    assert_eq!(output.bytes(), OUTPUT_BYTES_MAX);
    let longer = long.replace("}; }", "+ 'y' }; }");
    let too_long = format!("the function returned a message of more than {OUTPUT_BYTES_MAX} bytes");
    assert_eq!(fault(&longer).await, too_long);
    // Attributes share one text in the engine, but not in the message.
    let shared = "function f() {
        const value = 'x'.repeat(1000000);
        const attributes = {};
        for (let i = 0; i < 100; i++) attributes['a' + i] = value;
        return { data: '', attributes };
    }";
    assert_eq!(fault(shared).await, too_long);
    let many = shared.replace("1000000", "1").replace("i < 100", "i < 101");
    assert_eq!(fault(&many).await, "the function returned a message with more than 100 attributes");
}

/// A call of seconds gives its thread to others in between.
#[tokio::test]
async fn a_long_call_lets_others_have_its_thread() {
    let transforms = Arc::new(Transforms::new(1));
    let slow = "function f(m) { const from = Date.now(); while (Date.now() - from < 300); return m; }";
    let long = {
        let transforms = transforms.clone();
        let messages = (0..10).map(|i| message(&i.to_string())).collect();
        tokio::spawn(async move { transforms.apply([function("f", slow)].into(), messages, usize::MAX).await })
    };
    // The long call has the only thread, or is about to get it.
    tokio::task::yield_now().await;
    let same = function("f", "function f(m) { return m; }");
    let short = transforms.apply([same].into(), vec![message("x")], usize::MAX).await.expect("answered");
    assert!(matches!(&short[..], [Ok(Some(_))]), "{short:?}");
    assert!(!long.is_finished(), "the short call does not wait for all of the long one");
    let all = long.await.expect("ended").expect("answered");
    let data = all.iter().map(|one| one.as_ref().expect("no fault").as_ref().expect("a message").data.as_str());
    assert_eq!(data.collect::<String>(), "0123456789");
}
