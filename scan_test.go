package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// messageFields gives every value of a message under its path.
func messageFields(m *message) map[string]value {
	all := map[string]value{
		"id": m.id, "method": m.method, "params": m.params, "result": m.result, "error": m.err,
		"params.sessionId": m.session, "params.update": m.update,
	}
	for key, v := range map[string]value{
		"sessionUpdate": m.kind, "messageId": m.messageID, "toolCallId": m.toolCallID,
		"title": m.title, "kind": m.toolKind, "status": m.status, "content": m.content,
		"content.type": m.contentType, "content.text": m.text, "entries": m.entries,
		"availableCommands": m.commands, "currentModeId": m.modeID, "configOptions": m.options,
		"used": m.used, "size": m.size,
	} {
		all["params.update."+key] = v
	}
	return all
}

const wireChunk = `{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"sess-1","update":` +
	`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"%s"}}}}`

// wireSeeds are lines for rows and fuzzing alike.
var wireSeeds = []string{
	`{}`,
	` { } `,
	`{"id":1,"result":{}}`,
	`{"id":"1","error":{"code":-1,"message":"m"},"result":null}`,
	fmt.Sprintf(wireChunk, "hello"),
	fmt.Sprintf(wireChunk, `a\"b\\\/\b\f\n\r\t\u00e9\ud83d\ude00`),
	fmt.Sprintf(wireChunk, "\u00e9\U0001F600\xff\xfe \xed\xa0\x80"),
	`{"method":"session/update","params":{"update":{"toolCallId":"c","title":"t","kind":"read","status":"completed","content":[{"type":"content"}],` +
		`"entries":[],"availableCommands":[{}],"currentModeId":"m","configOptions":[[]],"used":1,"size":-2.5e+3,"messageId":null},"sessionId":"s"}}`,
	`{"\u006dethod":"x","p\u0061rams":{"\u0075pdate":{"cont\u0065nt":{"t\u0065xt":"y","\u0074ype":"z"}}}}`,
	`{"method":"a","method":"b","id":1,"id":null}`,
	`{"params":{"sessionId":"s","update":{"title":"t","content":{"text":"x"}}},"params":{}}`,
	`{"params":{"sessionId":"s","update":{"title":"t","content":{"text":"x"}}},"params":[]}`,
	`{"params":{"update":{"title":"t","content":{"text":"x"}},"update":{"kind":"k"}}}`,
	`{"params":{"update":{"title":"t","content":{"text":"x"},"content":null}}}`,
	`{"params":{"update":{"title":"t","content":{"text":"x"},"c\u006fntent":{"type":"x"}}}}`,
	`{"Method":"x","ID":1,"PARAMS":{}}`,
	`{"update":{"content":{"text":"x"}},"result":{"update":{"title":"t"},"params":{"sessionId":"s"}}}`,
	`{"params":{"params":{"sessionId":"x"},"content":{"text":"y"},"update":{"update":{"title":"t"}}}}`,
	`{"params":"x","result":[1,[2,{"a":{}}],[]],"id":{"id":1}}`,
	"\t{\r\n\"a\" : [ 1 , true,false , null ] ,\"b\":{ \"c\" : { } , \"d\" : [ ] } }\n",
	`{"a":0,"b":-0.0e-0,"c":1E5,"d":120,"e":0.5}`,
	`{"a\ud800":1,"id":"\udc00\ud800\ud800\udc00\ud83dx","method":"\ud83d\n\ud83d\u0041\ud83d","":""}`,
}

var wireInvalid = []string{
	``, ` `, `x`, `1`, `"s"`, `null`, `[]`, `[{}]`, `{}{}`, `{} x`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`,
	`{,}`, `{a:1}`, `{"a" 1}`, `{"a"::1}`, `{"a":}`, `{"a":1 "b":2}`, `{"a":1;"b":2}`, `{'a':1}`, `{1:1}`, `{"a":[}`, `{"a":[1}`, `{"a":{]}`,
	`{"a":[1,]}`, `{"a":[,1]}`, `{"a":[1 2]}`, `{"a":{"b":1,}}`, `{"a":{"b"}}`, `{"a":{"b":1]}`, `{"a":{1}}`, `{"a":[`, `{"a":{`, `{"a":[1`, `{"a":[1,`,
	`{"a":{"b":[{"c":1]}]}}`, `{"params":{]}`, `{"params":{}`, `{"params":{"update":{"content":{"text":"x"}}}`,
	`{"a":tru}`, `{"a":True}`, `{"a":truex}`, `{"a":nul}`, `{"a":fals}`, `{"a":t`, `{"a":NaN}`,
	`{"a":01}`, `{"a":-}`, `{"a":+1}`, `{"a":1.}`, `{"a":.5}`, `{"a":1e}`, `{"a":1e+}`, `{"a":-01}`, `{"a":0x1}`, `{"a":1.e1}`, `{"a":--1}`,
	`{"a":"}`, `{"a":"\"}`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u12g4"}`, `{"a":"\`, `{"a":"\u`, `{"a":"\u123`, "{\"a\":\"\x00\"}", "{\"a\":\"\x1f\"}", "{\"a\":\"\n\"}",
	`{"a\x":1}`, "{\"a\x01\":1}", "{\u00a0}", "\uFEFF{}", "{\"a\":1}\x00", "{\"a\":1\v}",
}

func TestScan(t *testing.T) {
	for _, line := range wireSeeds {
		checkScan(t, []byte(line))
		if _, ok := new(scanner).scan([]byte(line)); !ok {
			t.Errorf("%s does not scan", line)
		}
	}
	for _, line := range wireInvalid {
		checkScan(t, []byte(line))
		if _, ok := new(scanner).scan([]byte(line)); ok {
			t.Errorf("%s scans", line)
		}
	}
}

// TestScanRows: the rules of SPEC 12 on keys, by the fields that are set.
func TestScanRows(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       map[string]string
	}{
		{"keys are exact", `{"Method":"a","ID":1,"method ":2}`, nil},
		{"an escaped key counts as what it spells", `{"\u006dethod":"a"}`, map[string]string{"method": `"a"`}},
		{"the last duplicate counts", `{"method":"a","m\u0065thod":"b"}`, map[string]string{"method": `"b"`}},
		{"a duplicate replaces the earlier params whole", `{"params":{"sessionId":"s","update":{"title":"t"}},"params":{}}`,
			map[string]string{"params": `{}`}},
		{"by no object too", `{"params":{"sessionId":"s","update":{"title":"t"}},"params":7}`, map[string]string{"params": `7`}},
		{"an update whole", `{"params":{"update":{"title":"t","content":{"text":"x"}},"update":null}}`,
			map[string]string{"params": `{"update":{"title":"t","content":{"text":"x"}},"update":null}`, "params.update": `null`}},
		{"a content whole", `{"params":{"update":{"content":{"text":"x"},"content":[]}}}`,
			map[string]string{"params": `{"update":{"content":{"text":"x"},"content":[]}}`,
				"params.update":         `{"content":{"text":"x"},"content":[]}`,
				"params.update.content": `[]`}},
		{"only at their own place", `{"x":{"method":"a"},"sessionId":"s","title":"t","text":"x"}`, nil},
	} {
		m, ok := new(scanner).scan([]byte(tt.line))
		if !ok {
			t.Errorf("%s: does not scan", tt.name)
			continue
		}
		for path, v := range messageFields(m) {
			if want, set := tt.want[path]; string(v) != want || (v != nil) != set {
				t.Errorf("%s: %s is %q, want %q", tt.name, path, v, want)
			}
		}
	}
}

// checkScan compares a scan with encoding/json.
func checkScan(t *testing.T, line []byte) {
	t.Helper()
	m, ok := new(scanner).scan(line)
	var top map[string]any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber() // a float64 cannot hold every valid number
	want := json.Valid(line) && bytes.TrimLeft(line, " \t\r\n")[0] == '{' && d.Decode(&top) == nil
	if ok != want {
		t.Fatalf("scan(%.300q) = %v, want %v", line, ok, want)
	}
	if !ok {
		return
	}
	for path, v := range messageFields(m) {
		var want any = top
		set := true
		for key := range strings.SplitSeq(path, ".") {
			object, _ := want.(map[string]any)
			want, set = object[key]
		}
		if (v != nil) != set {
			t.Fatalf("%.300q: %s is %s, want it set: %v", line, path, v, set)
		}
		if set {
			checkValue(t, v, want)
		}
	}
}

func checkValue(t *testing.T, v value, want any) {
	t.Helper()
	var got any
	d := json.NewDecoder(bytes.NewReader(v))
	d.UseNumber()
	if err := d.Decode(&got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("value %s, %v, want %v", v, err, want)
	}
	kind := map[string]byte{"string": '"', "json.Number": '0', "[]interface {}": '[', "map[string]interface {}": '{', "<nil>": 'n'}[fmt.Sprintf("%T", want)]
	if b, ok := want.(bool); ok {
		kind = map[bool]byte{true: 't', false: 'f'}[b]
	}
	if v.kind() != kind {
		t.Fatalf("kind of %s is %q, want %q", v, v.kind(), kind)
	}
	text, isString := want.(string)
	if !isString {
		if v.is("") {
			t.Fatalf("%s is a string", v)
		}
		return
	}
	if got := appendUnquoted([]byte("dst "), v); string(got) != "dst "+text {
		t.Fatalf("%s unquotes to %q, want %q", v, got, text)
	}
	if !v.is(text) || v.is(text+"x") || text != "" && v.is(text[1:]) {
		t.Fatalf("%s is not %q, or something else too", v, text)
	}
}

func TestValueIs(t *testing.T) {
	for _, tt := range []struct {
		v, s string
		want bool
	}{
		{`"a"`, "a", true},
		{`"a"`, "b", false},
		{`"a"`, "", false},
		{`""`, "", true},
		{`"\u0061"`, "a", true},
		{`"\\n"`, `\n`, true},
		{`"\n"`, `\n`, false}, // the raw bytes are equal
		{"\"\xff\"", "\uFFFD", true},
		{"\"\xff\"", "\xff", false},
		{`null`, "null", false},
		{`1`, "1", false},
		{``, "", false},
	} {
		if got := value(tt.v).is(tt.s); got != tt.want {
			t.Errorf("%s is %q: %v, want %v", tt.v, tt.s, got, tt.want)
		}
	}
}

// TestScanDepth: as deep as encoding/json, wherever the nesting stands.
func TestScanDepth(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, line string }{
		{"arrays", `{"a":%s1%s}`},
		{"in params", `{"params":%s1%s}`},
		{"in content", `{"params":{"update":{"content":{"text":%s1%s}}}}`},
	} {
		outer := strings.Count(tt.line, "{")
		for _, unit := range [][2]string{{"[", "]"}, {`{"a":`, "}"}, {`[{"a":`, "}]"}} {
			for _, depth := range []int{63, 64, 65, 1000, maxDepth - 1, maxDepth, maxDepth + 1, maxDepth + 2, 1 << 20} {
				n := (depth - outer) / len(unit[1])
				line := []byte(fmt.Sprintf(tt.line, strings.Repeat(unit[0], n), strings.Repeat(unit[1], n)))
				var s scanner
				_, ok := s.scan(line)
				if want := json.Valid(line); ok != want || want != (outer+n*len(unit[1]) <= maxDepth) {
					t.Errorf("%s of %s, depth %d: %v, want %v", tt.name, unit, depth, ok, want)
				}
				if kept := cap(s.objects); kept > 2*maxDepth/64 {
					t.Errorf("%d words of stack kept", kept)
				}
			}
		}
	}
	// The stack is left over from a deep line; its bits mean nothing to the next.
	var s scanner
	for _, line := range []string{`{"a":[[[[[1]]]]]}`, `{"a":{"a":[{"a":[1,{"b":2}]}]}}`, `{"a":[{"a":[1,{"b":2}]}]}`} {
		if _, ok := s.scan([]byte(line)); !ok {
			t.Errorf("%s does not scan", line)
		}
	}
}

// TestScanStringBytes puts every byte at every place of two words.
func TestScanStringBytes(t *testing.T) {
	for c := range 256 {
		for at := range 17 {
			for _, filler := range []byte{'a', 0x80, 0xff, ' ', '!', '#', '[', ']', 0x7f} {
				text := bytes.Repeat([]byte{filler}, 17)
				text[at] = byte(c)
				line := fmt.Appendf(nil, `{"a":"%s"}`, text)
				if _, ok := new(scanner).scan(line); ok != json.Valid(line) {
					t.Fatalf("scan(%q) = %v", line, ok)
				}
			}
		}
	}
}

func TestScanKeepsNothing(t *testing.T) {
	var s scanner
	m, _ := s.scan([]byte(wireSeeds[7]))
	if m == nil || m.update == nil {
		t.Fatal("does not scan")
	}
	m, ok := s.scan([]byte(`{"id":1}`))
	if !ok || m.update != nil {
		t.Errorf("an update is left of the line before: %s", m.update)
	}
	s.drop()
	if !reflect.DeepEqual(*m, message{}) {
		t.Errorf("%+v is left after drop", m)
	}
}

// TestUpdatePathAllocates: nothing.
func TestUpdatePathAllocates(t *testing.T) {
	line := []byte(fmt.Sprintf(wireChunk, "hello"))
	var s scanner
	var sh shape
	run := func() {
		m, ok := s.scan(line)
		if !ok || !m.kind.is("agent_message_chunk") || !m.session.is("sess-1") {
			t.Fatal("does not scan")
		}
		sh.learn(line, m.text)
		if _, ok := sh.match(line); !ok {
			t.Fatal("does not match")
		}
	}
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations a line", n)
	}
}

func FuzzScanAgreesWithJSON(f *testing.F) {
	for _, line := range append(wireSeeds, wireInvalid...) {
		f.Add([]byte(line))
	}
	f.Fuzz(checkScan)
}

func TestShape(t *testing.T) {
	learned := fmt.Sprintf(wireChunk, "hello")
	other := `{"method":"m","params":{"update":{"content":{"text":"%s"}},"sessionId":"s"}}`
	for _, tt := range []struct {
		name, learned, line string
		want                string // "": no match
	}{
		{"the same line", learned, learned, `"hello"`},
		{"another text", learned, fmt.Sprintf(wireChunk, `x\n\u00e9`), `"x\n\u00e9"`},
		{"an empty text", learned, fmt.Sprintf(wireChunk, ``), `""`},
		{"learned empty", fmt.Sprintf(wireChunk, ``), learned, `"hello"`},
		{"a text that ends early", learned, fmt.Sprintf(wireChunk, `a"b`), ``},
		{"a text and more members", learned, fmt.Sprintf(wireChunk, `a","text":"b`), ``},
		{"a text that does not end", learned, fmt.Sprintf(wireChunk, `a\`), ``},
		{"a bad escape", learned, fmt.Sprintf(wireChunk, `a\x`), ``},
		{"a control character", learned, fmt.Sprintf(wireChunk, "a\tb"), ``},
		{"another head", learned, strings.Replace(learned, "sess-1", "sess-2", 1), ``},
		{"another tail", learned, learned[:len(learned)-1] + " ", ``},
		{"a longer tail", learned, learned + " ", ``},
		{"head and tail that share bytes", `{"params":{"update":{"content":{"text":""}}}}`, `{"params":{"update":{"content":{"text":"}}}}`, ``},
		{"no room for the tail", `{"params":{"update":{"content":{"text":"a"}}},"method":"` + strings.Repeat("m", 100) + `"}`, `{"params":{"update":{"content":{"text":"a`, ``},
		{"members behind the text", fmt.Sprintf(other, "a"), fmt.Sprintf(other, "bc"), `"bc"`},
		{"nothing learned", ``, learned, ``},
		{"text that is no string", `{"params":{"update":{"content":{"text":11}}}}`, `{"params":{"update":{"content":{"text":11}}}}`, ``},
		{"too long to keep", fmt.Sprintf(other, "a") + strings.Repeat(" ", shapeMax), fmt.Sprintf(other, "a") + strings.Repeat(" ", shapeMax), ``},
	} {
		var s scanner
		var sh shape
		if line := []byte(tt.learned); tt.learned != "" {
			m, ok := s.scan(line)
			if !ok {
				t.Fatalf("%s: %s does not scan", tt.name, line)
			}
			sh.learn(line, m.text)
			clear(line) // nothing of it may be kept
		}
		text, ok := sh.match([]byte(tt.line))
		if string(text) != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %v, want %q", tt.name, text, ok, tt.want)
		}
		sh.forget()
		if _, ok := sh.match([]byte(tt.line)); ok {
			t.Errorf("%s: matches after forget", tt.name)
		}
	}
	var sh shape
	line := slices.Clip([]byte(learned))
	same := slices.Clip(bytes.Clone(line))
	at := strings.Index(learned, `"hello"`)
	sh.learn(line, same[at:at+len(`"hello"`)])
	if _, ok := sh.match(line); ok {
		t.Error("learned a text of another line")
	}
}

func FuzzShape(f *testing.F) {
	for _, line := range wireSeeds {
		f.Add([]byte(line), []byte(`x\u0041`), []byte(line))
	}
	f.Add([]byte(fmt.Sprintf(wireChunk, "x")), []byte(`a","text":"b`), []byte(fmt.Sprintf(wireChunk, `\"`)))
	f.Fuzz(func(t *testing.T, line, text, other []byte) {
		learned, ok := new(scanner).scan(line)
		if !ok {
			return
		}
		var sh shape
		sh.learn(line, learned.text)
		checkShape(t, &sh, learned, other)
		if learned.text.kind() != '"' || len(line) > shapeMax {
			return
		}
		at := cap(line) - cap(learned.text)
		made := slices.Concat(line[:at+1], text, line[at+len(learned.text)-1:])
		checkShape(t, &sh, learned, made)
		_, ok = sh.match(made)
		if want := json.Valid(slices.Concat([]byte{'"'}, text, []byte{'"'})); ok != want {
			t.Fatalf("%q matches %q: %v, want %v", made, line, ok, want)
		}
	})
}

// checkShape: what matches gives, by a full scan, the fields of the learned
// line and that text.
func checkShape(t *testing.T, sh *shape, learned *message, line []byte) {
	t.Helper()
	text, ok := sh.match(line)
	if !ok {
		return
	}
	m, ok := new(scanner).scan(line)
	if !ok || !bytes.Equal(m.text, text) {
		t.Fatalf("%q matches with text %q, its scan gives %v, %q", line, text, ok, m.text)
	}
	want := messageFields(learned)
	for path, v := range messageFields(m) {
		if strings.HasPrefix("params.update.content.text", path) { // they hold the text
			continue
		}
		if !bytes.Equal(v, want[path]) {
			t.Fatalf("%q matches, but %s is %q, not %q", line, path, v, want[path])
		}
	}
}

// repeated repeats a line, for benchmarks.
type repeated struct {
	lines     []byte
	left, off int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n := 0
	for limit := min(len(p), r.left); n < limit; {
		c := copy(p[n:limit], r.lines[r.off:])
		n += c
		r.off = (r.off + c) % len(r.lines)
	}
	r.left -= n
	return n, nil
}

// benchmarkScan reads and scans update lines, and says what that costs in
// percent of json.Valid on the same lines.
func benchmarkScan(b *testing.B, size int, shapes bool) {
	text := strings.Repeat("some text ", 1+size/10)[:size]
	line := []byte(fmt.Sprintf(wireChunk, text))
	start := time.Now()
	for range b.N {
		if !json.Valid(line) {
			b.Fatal("not valid")
		}
	}
	valid := time.Since(start)
	line = append(line, '\n')
	var pool bufPool
	var s scanner
	var sh shape
	r := newLineReader(&repeated{lines: bytes.Repeat(line, 1+1<<20/len(line)), left: b.N * len(line)}, 10<<20, &pool)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	b.ResetTimer()
	for {
		var lines batch
		r.next(&lines)
		for line, _, ok := lines.line(); ok; line, _, ok = lines.line() {
			if shapes {
				if _, ok := sh.match(line); ok {
					continue
				}
			}
			m, ok := s.scan(line)
			if !ok {
				b.Fatal("does not scan")
			}
			if shapes {
				sh.learn(line, m.text)
			}
		}
		lines.release()
		if lines.err != nil {
			break
		}
	}
	b.ReportMetric(100*float64(b.Elapsed())/float64(valid), "%json.Valid")
}

func BenchmarkScan40B(b *testing.B)      { benchmarkScan(b, 40, false) }
func BenchmarkScan2KiB(b *testing.B)     { benchmarkScan(b, 2048, false) }
func BenchmarkScanShape40B(b *testing.B) { benchmarkScan(b, 40, true) }
func BenchmarkScanShape2KiB(b *testing.B) {
	benchmarkScan(b, 2048, true)
}
