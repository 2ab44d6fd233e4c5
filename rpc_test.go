package acp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// wireOver stands for a line above the bound in what collectLines returns.
const wireOver = "(over)"

// collectLines reads a stream to its end.
func collectLines(r *lineReader) ([]string, error) {
	lines := []string{}
	for {
		var b batch
		r.next(&b)
		for {
			line, over, ok := b.line()
			if !ok {
				break
			}
			if over {
				line = []byte(wireOver)
			}
			lines = append(lines, string(line))
		}
		if b.over {
			lines = append(lines, wireOver)
		}
		b.release()
		if b.err != nil {
			return lines, b.err
		}
	}
}

// splitLines is what collectLines should return, in the plainest way.
func splitLines(stream string, max int) []string {
	lines := strings.Split(strings.TrimPrefix(stream, "\uFEFF"), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	for i, line := range lines {
		if lines[i] = strings.TrimSuffix(line, "\r"); len(lines[i]) > max {
			lines[i] = wireOver
		}
	}
	return lines
}

// chunkReader reads as many bytes at once as its sizes say, in turn.
type chunkReader struct {
	left  string
	sizes []byte
	reads int
}

func (r *chunkReader) Read(p []byte) (int, error) {
	if r.left == "" {
		return 0, io.EOF
	}
	n := len(p)
	if len(r.sizes) > 0 {
		n = min(n, 1+int(r.sizes[r.reads%len(r.sizes)]))
		r.reads++
	}
	n = copy(p[:n], r.left)
	r.left = r.left[n:]
	return n, nil
}

func TestLineReader(t *testing.T) {
	long := strings.Repeat("x", 3*largeBuf)
	for _, tt := range []struct {
		name, stream string
		max          int
		want         []string
	}{
		{"nothing", "", 8, []string{}},
		{"one line", "ab\n", 8, []string{"ab"}},
		{"carriage returns", "a\r\nb\r\r\n\r\n", 8, []string{"a", "b\r", ""}},
		{"blank lines", "\n\na\n\n", 8, []string{"", "", "a", ""}},
		{"no last newline", "a\nb", 8, []string{"a", "b"}},
		{"no last newline but a carriage return", "a\nb\r", 8, []string{"a", "b"}},
		{"byte order mark", "\uFEFFa\n", 8, []string{"a"}},
		{"one byte order mark only", "\uFEFF\uFEFFa\n", 8, []string{"\uFEFFa"}},
		{"one byte order mark only of a long line", "\uFEFF\uFEFF" + long, 2 * len(long), []string{"\uFEFF" + long}},
		{"byte order mark of a later line", "a\n\uFEFFb\n", 8, []string{"a", "\uFEFFb"}},
		{"byte order mark behind a newline", "\n\uFEFFb\n", 8, []string{"", "\uFEFFb"}},
		{"byte order mark alone", "\uFEFF", 8, []string{}},
		{"half a byte order mark", "\xEF\xBB", 8, []string{"\xEF\xBB"}},
		{"at the bound", "12345678\n", 8, []string{"12345678"}},
		{"at the bound with carriage return", "12345678\r\n", 8, []string{"12345678"}},
		{"at the bound with byte order mark", "\uFEFF12345678\n", 8, []string{"12345678"}},
		{"at the bound at the end", "12345678", 8, []string{"12345678"}},
		{"above the bound", "123456789\nb\n", 8, []string{wireOver, "b"}},
		{"above the bound with carriage return", "12345678\r\r\nb\n", 8, []string{wireOver, "b"}},
		{"above the bound at the end", "a\n123456789", 8, []string{"a", wireOver}},
		{"above the bound then blank", "123456789\n\n", 8, []string{wireOver, ""}},
		{"several above the bound", "123456789\n123456789\na\n1234567890\n123456789", 8,
			[]string{wireOver, wireOver, "a", wireOver, wireOver}},
		{"far above the bound", "a\n" + long + "\nb\n", 8, []string{"a", wireOver, "b"}},
		{"larger than every usual buffer", "a\n" + long + "\nb\n" + long, len(long), []string{"a", long, "b", long}},
		{"one more than that", long + "\n" + long[1:] + "\n", len(long) - 1, []string{wireOver, long[1:]}},
		{"no bound to speak of", long + "\n", int(^uint(0) >> 1), []string{long}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, r := range map[string]io.Reader{
				"whole":        strings.NewReader(tt.stream),
				"byte by byte": iotest.OneByteReader(strings.NewReader(tt.stream)),
				"halves":       iotest.HalfReader(strings.NewReader(tt.stream)),
				"end with it":  iotest.DataErrReader(strings.NewReader(tt.stream)),
			} {
				got, err := collectLines(newLineReader(r, tt.max, new(bufPool)))
				if !slices.Equal(got, tt.want) || err != io.EOF {
					t.Errorf("%s: %.200q, %v, want %.200q", name, got, err, tt.want)
				}
			}
			if ref := splitLines(tt.stream, tt.max); !slices.Equal(ref, tt.want) {
				t.Errorf("reference: %.200q, want %.200q", ref, tt.want)
			}
		})
	}
}

func TestLineReaderFails(t *testing.T) {
	failed := errors.New("failed")
	r := newLineReader(io.MultiReader(strings.NewReader("a\nb"), iotest.ErrReader(failed)), 8, new(bufPool))
	got, err := collectLines(r)
	if !slices.Equal(got, []string{"a", "b"}) || err != failed {
		t.Errorf("%q, %v, want a, b and the failure", got, err)
	}
	var b batch
	if r.next(&b); b.err != failed || b.lines != nil || b.over {
		t.Errorf("after the failure: %+v, want it again and nothing else", b)
	}
}

func FuzzLineReader(f *testing.F) {
	f.Add("\uFEFFa\r\nbb\n\n1234567890\nc", uint16(1), 4, []byte{0})
	f.Add("123456789\n12345678\r\n", uint16(3), 8, []byte{3, 1})
	f.Add("x", uint16(3000), 2999, []byte{255})
	f.Add("{}\n", uint16(60000), 2, []byte{})
	f.Add("a long line\ra", uint16(9000), 117000, []byte{})
	f.Fuzz(func(t *testing.T, stream string, times uint16, max int, sizes []byte) {
		if max < 2 || len(stream)*int(times) > 1<<18 { // no object fits into a bound below 2
			return
		}
		stream = strings.Repeat(stream, int(times))
		got, err := collectLines(newLineReader(&chunkReader{left: stream, sizes: sizes}, max, new(bufPool)))
		if want := splitLines(stream, max); !slices.Equal(got, want) || err != io.EOF {
			t.Fatalf("%q, %v, want %q", got, err, want)
		}
		for _, line := range got {
			if len(line) > max && line != wireOver {
				t.Fatalf("a line of %d bytes, bound %d", len(line), max)
			}
		}
	})
}

// reads gives one of its elements a read, what does not fit with the next.
type reads []string

func (r *reads) Read(p []byte) (int, error) {
	if len(*r) == 0 {
		return 0, io.EOF
	}
	n := copy(p, (*r)[0])
	if (*r)[0] = (*r)[0][n:]; (*r)[0] == "" {
		*r = (*r)[1:]
	}
	return n, nil
}

// TestReaderBuffers: what the reader waits with for the rest of a stream.
func TestReaderBuffers(t *testing.T) {
	chunk := func(n int) string { return strings.Repeat("x", n-1) + "\n" }
	for _, tt := range []struct {
		name   string
		stream reads
		want   int
	}{
		{"nothing read", nil, smallBuf},
		{"a short read", reads{chunk(100)}, smallBuf},
		{"a short read and a begun line", reads{chunk(100) + "abc"}, smallBuf},
		{"a full read", reads{chunk(smallBuf)}, largeBuf},
		{"a short read after a full one", reads{chunk(smallBuf), chunk(200)}, smallBuf},
		{"full reads", reads{chunk(smallBuf), chunk(largeBuf)}, largeBuf},
		{"a long line", reads{chunk(2 << 20)}, smallBuf},
		{"a begun line of some length", reads{chunk(smallBuf) + strings.Repeat("x", smallBuf)}, largeBuf},
	} {
		var lines int
		for _, read := range tt.stream {
			lines += strings.Count(read, "\n")
		}
		r := newLineReader(&tt.stream, 4<<20, new(bufPool))
		for lines > 0 {
			var b batch
			r.next(&b)
			lines -= bytes.Count(b.lines, []byte("\n"))
			b.release()
		}
		if got := len(*r.buf); got != tt.want {
			t.Errorf("%s: holds %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}

// endless repeats one byte, left times, then says tail.
type endless struct {
	left int
	tail io.Reader
}

func (r *endless) Read(p []byte) (int, error) {
	if r.left == 0 {
		return r.tail.Read(p)
	}
	n := min(len(p), r.left, largeBuf) // as a pipe does
	for i := range p[:n] {
		p[i] = 'x'
	}
	r.left -= n
	return n, nil
}

// TestLongLineMemory: everything that was allocated is more than was ever held
// at once.
func TestLongLineMemory(t *testing.T) {
	const max = 10 << 20
	for _, tt := range []struct {
		name    string
		line    int
		tail    string
		want    []string
		allowed uint64
	}{
		{"64 MiB", 64 << 20, "\n{}\n", []string{wireOver, "{}"}, max + 14<<20},
		{"that never ends", 256 << 20, "", []string{wireOver}, max + 14<<20},
		{"legal", max, "\n{}\n", []string{"", "{}"}, max + 14<<20},
		{"1 MiB", 1 << 20, "\n{}\n", []string{"", "{}"}, max + 3<<20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := newLineReader(&endless{tt.line, strings.NewReader(tt.tail)}, max, new(bufPool))
			got := []string{}
			for {
				var b batch
				r.next(&b)
				for line, over, ok := b.line(); ok; line, over, ok = b.line() {
					if line = bytes.TrimLeft(line, "x"); over {
						t.Error("a line of a batch is over, want the batch")
					}
					got = append(got, string(line))
				}
				if b.over {
					got = append(got, wireOver)
				}
				b.release()
				if b.err != nil {
					break
				}
			}
			runtime.ReadMemStats(&after)
			if !slices.Equal(got, tt.want) {
				t.Errorf("lines %.100q, want %q", got, tt.want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > tt.allowed {
				t.Errorf("%d bytes allocated, want at most %d", n, tt.allowed)
			}
		})
	}
}

func TestOwnID(t *testing.T) {
	for _, tt := range []struct {
		v      string
		id     int64
		quoted bool
	}{
		{`1`, 1, false},
		{`12`, 12, false},
		{`9223372036854775807`, 1<<63 - 1, false},
		{`9223372036854775808`, 0, false},
		{`99999999999999999999999999`, 0, false},
		{`"1"`, 1, true},
		{`"9223372036854775807"`, 1<<63 - 1, true},
		{`"\u0031\u0032"`, 12, true},
		{`0`, 0, false},
		{`-1`, 0, false},
		{`1.0`, 0, false},
		{`1e0`, 0, false},
		{`"01"`, 0, false},
		{`"+1"`, 0, false},
		{`" 1"`, 0, false},
		{`"1 "`, 0, false},
		{`"1.0"`, 0, false},
		{`"1_0"`, 0, false},
		{`"` + strings.Repeat("1", 1<<20) + `"`, 0, false},
		{`""`, 0, false},
		{`null`, 0, false},
		{`true`, 0, false},
		{`[1]`, 0, false},
		{`{"1":1}`, 0, false},
		{``, 0, false},
	} {
		id, quoted, ok := ownID(value(tt.v))
		if want := tt.id != 0; id != tt.id || ok != want || ok && quoted != tt.quoted {
			t.Errorf("ownID(%.40s) = %d, %v, %v, want %d, %v, %v", tt.v, id, quoted, ok, tt.id, tt.quoted, want)
		}
	}
}

func TestEncode(t *testing.T) {
	type params struct {
		Text string `json:"text"`
	}
	for _, tt := range []struct {
		name, got, want string
	}{
		{"request", string(encodeRequest(7, "a/b", params{"<&>\n\"é"})),
			`{"jsonrpc":"2.0","id":7,"method":"a/b","params":{"text":"<&>\n\"é"}}`},
		{"request without params", string(encodeRequest(1, "a", nil)), `{"jsonrpc":"2.0","id":1,"method":"a"}`},
		{"notification", string(encodeNotification("a", params{"x"})), `{"jsonrpc":"2.0","method":"a","params":{"text":"x"}}`},
		{"result", string(encodeResult(value(`"x"`), params{"x"})), `{"jsonrpc":"2.0","id":"x","result":{"text":"x"}}`},
		{"null result", string(encodeResult(value(`3`), nil)), `{"jsonrpc":"2.0","id":3,"result":null}`},
		{"error", string(encodeError(value(`3`), -32601, "method not found")),
			`{"jsonrpc":"2.0","id":3,"error":{"code":-32601,"message":"method not found"}}`},
		{"error without an id", string(encodeError(nil, -1, "")), `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":""}}`},
	} {
		if tt.got != tt.want+"\n" {
			t.Errorf("%s: %q, want %q", tt.name, tt.got, tt.want+"\n")
		}
	}
}

// TestIDsComeBackExactly: ids of the runtime are echoed byte for byte.
func TestIDsComeBackExactly(t *testing.T) {
	for _, id := range []string{
		`0`, `-1`, `1.50`, `1e400`, `123456789012345678901234567890`, `""`, `"<&>"`, `"\u003c\/\u00e9"`, "\"\xff\"", "\"\u2028\"",
	} {
		if got, want := string(encodeResult(value(id), nil)), `{"jsonrpc":"2.0","id":`+id+`,"result":null}`+"\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// FuzzEncode: what an encoder writes is one line that scans to what went in,
// and encodes again to the same line.
func FuzzEncode(f *testing.F) {
	f.Add(int64(1), "session/prompt", "hello <b> \u2028\n\xff", `"a\u0062"`)
	f.Add(int64(1<<62), "", "", `12345678901234567890`)
	f.Add(int64(-5), "\x00\"\\", "\uD7FF\U0010FFFF", `{"x":[1, 2]}`)
	f.Fuzz(func(t *testing.T, number int64, method, text, rawID string) {
		type params struct {
			SessionID string `json:"sessionId"`
		}
		scan := func(line []byte) *message {
			t.Helper()
			m, ok := new(scanner).scan(line)
			if !ok || bytes.IndexByte(line, '\n') != len(line)-1 {
				t.Fatalf("%q is not a message on one line", line)
			}
			return m
		}
		method, text = validText(method), validText(text)
		line := encodeRequest(number, method, params{text})
		m := scan(line)
		if !m.method.is(method) || !m.session.is(text) {
			t.Fatalf("%q does not say %q and %q", line, method, text)
		}
		if id, quoted, ok := ownID(m.id); ok != (number > 0) || quoted || ok && id != number {
			t.Fatalf("id %s, want %d", m.id, number)
		}
		said := params{string(appendUnquoted(nil, m.session))}
		if again := encodeRequest(number, string(appendUnquoted(nil, m.method)), said); !bytes.Equal(again, line) {
			t.Fatalf("%q, want %q", again, line)
		}
		if m := scan(encodeNotification(method, params{text})); !m.method.is(method) || !m.session.is(text) || m.id != nil {
			t.Fatalf("a notification says %s and %s with id %s", m.method, m.session, m.id)
		}
		if !json.Valid([]byte(rawID)) {
			return
		}
		id := value(strings.Trim(rawID, " \t\r\n"))
		exact := id.kind() == '"' || id.kind() == '0'
		for _, line := range [][]byte{encodeResult(id, text), encodeError(id, -32601, text)} {
			if m := scan(line); exact && !bytes.Equal(m.id, id) {
				t.Fatalf("id %s, want %s", m.id, id)
			}
		}
	})
}

// validText is s as encoding/json writes it: each byte that is no UTF-8 is
// U+FFFD.
func validText(s string) string { return string([]rune(s)) }
