package acp

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	smallBuf = 512      // what a reader holds while the runtime is silent
	largeBuf = 64 << 10 // a pipe's worth: what it reads into while the runtime talks
	hugeLine = 1 << 20  // a line this long gets room for the bound at once
)

// bufPool lends read buffers of the two usual sizes. Its zero value is ready.
type bufPool struct{ small, large sync.Pool }

func (p *bufPool) get(size int) *[]byte {
	var b *[]byte
	switch size {
	case smallBuf:
		b, _ = p.small.Get().(*[]byte)
	case largeBuf:
		b, _ = p.large.Get().(*[]byte)
	}
	if b == nil {
		fresh := make([]byte, size)
		b = &fresh
	}
	return b
}

// put takes a buffer back. One of another size grew for a long line and is left
// to the garbage collector.
func (p *bufPool) put(b *[]byte) {
	switch len(*b) {
	case smallBuf:
		p.small.Put(b)
	case largeBuf:
		p.large.Put(b)
	}
}

// A batch is what the reader hands to the loop at once: whole lines, then
// perhaps a line above the bound, then perhaps the end of the stream.
type batch struct {
	at   time.Time // when it was read; set by the reader goroutine
	over bool      // behind these lines one passed the bound; the reader throws its rest away
	err  error     // behind these lines the stream ended (io.EOF) or failed

	lines []byte  // not yet returned by line; part of buf
	buf   *[]byte // nil once released
	max   int
	pool  *bufPool
}

// line returns the next line without its newline, valid until release. A line
// above the bound comes as over, with no bytes.
func (b *batch) line() (line []byte, over, ok bool) {
	if len(b.lines) == 0 {
		return nil, false, false
	}
	i := bytes.IndexByte(b.lines, '\n')
	if i < 0 { // the last line of the stream
		line, b.lines = b.lines, nil
	} else {
		line, b.lines = b.lines[:i], b.lines[i+1:]
	}
	if line = trimCR(line); len(line) > b.max {
		return nil, true, true
	}
	return line, false, true
}

// release gives the buffer back: no line of the batch may be used any more.
func (b *batch) release() {
	if b.buf != nil {
		b.pool.put(b.buf)
		b.lines, b.buf = nil, nil
	}
}

// trimCR removes the carriage return of a line that ended in \r\n.
func trimCR(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		return line[:n-1]
	}
	return line
}

// A lineReader splits a stream into batches of lines of at most max bytes,
// newline not counted.
type lineReader struct {
	r    io.Reader
	max  int
	pool *bufPool

	buf        *[]byte // buf[start:end] is the begun line, without a newline in it
	start, end int
	full       bool  // the last read filled buf: the runtime has more to say
	first      bool  // nothing was handed over yet
	skipping   bool  // inside a line above the bound
	err        error // of the last read; nothing is read after it
}

func newLineReader(r io.Reader, max int, pool *bufPool) *lineReader {
	lr := &lineReader{r: r, max: min(max, math.MaxInt-largeBuf), pool: pool, first: true}
	lr.renew(nil)
	return lr
}

// next reads until it has a whole line, a line above the bound, or the end of
// the stream. It fills b in place: the reader's stack stays small while it waits.
func (r *lineReader) next(b *batch) {
	for r.err == nil {
		if r.end == len(*r.buf) { // the begun line fills it
			old := r.buf
			r.renew((*old)[r.start:r.end])
			r.pool.put(old)
		}
		from := r.end
		n, err := r.r.Read((*r.buf)[from:])
		r.end, r.err = from+n, err
		r.full = r.end == len(*r.buf)
		if r.skipping {
			i := bytes.IndexByte((*r.buf)[from:r.end], '\n')
			if i < 0 {
				r.end = r.start
				continue
			}
			from += i + 1
			r.start, r.skipping = from, false
		}
		if r.first && bytes.HasPrefix((*r.buf)[:r.end], []byte("\uFEFF")) {
			r.start, r.first = len("\uFEFF"), false
		}
		cut := r.start // the end of the whole lines
		if i := bytes.LastIndexByte((*r.buf)[from:r.end], '\n'); i >= 0 {
			cut = from + i + 1
		}
		over := len(trimCR((*r.buf)[cut:r.end])) > r.max
		if over || cut > r.start || r.err != nil {
			r.handOver(b, cut, over)
			return
		}
	}
	*b = batch{err: r.err}
}

// handOver puts the lines before cut into b and keeps what stands behind.
func (r *lineReader) handOver(b *batch, cut int, over bool) {
	*b = batch{over: over, err: r.err, buf: r.buf, max: r.max, pool: r.pool}
	begun := (*r.buf)[cut:r.end]
	if over {
		begun = nil
		r.skipping, r.full = true, true
	} else if r.err != nil { // SPEC 12: a last line without a newline counts
		cut = r.end
	}
	b.lines = (*r.buf)[r.start:cut]
	r.first, r.buf = false, nil
	if r.err == nil {
		r.renew(begun)
	}
	if len(b.lines) == 0 {
		b.release()
	}
}

// renew continues the begun line at the front of another buffer.
func (r *lineReader) renew(begun []byte) {
	r.buf = r.pool.get(r.size(len(begun)))
	r.start, r.end = 0, copy(*r.buf, begun)
}

// size is that of the buffer for a begun line of n bytes; it is above n, which
// is at most max + 1.
func (r *lineReader) size(n int) int {
	switch {
	case n < smallBuf && !r.full:
		return smallBuf
	case n < largeBuf:
		return largeBuf
	case n < hugeLine:
		return min(2*n, r.max+largeBuf)
	}
	// Doubling on would hold one and a half times the bound at the last step.
	// The factor only stops an absurd bound from being allocated at once.
	return min(16*n, r.max+largeBuf)
}

// A value is the JSON text of one value: a part of the line it stands in. Nil
// is absent.
type value []byte

// kind is the value's first byte, '0' for any number, 0 if absent.
func (v value) kind() byte {
	if len(v) == 0 {
		return 0
	}
	switch c := v[0]; c {
	case '"', '{', '[', 't', 'f', 'n':
		return c
	}
	return '0'
}

// is reports whether v is a string that spells s.
func (v value) is(s string) bool {
	if v.kind() != '"' || len(v) > 6*len(s)+2 { // even if every byte is a \u escape
		return false
	}
	raw := v[1 : len(v)-1]
	if bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) {
		return string(raw) == s
	}
	return string(appendUnquoted(nil, v)) == s
}

// A message is what a scan found in a line. Its values are parts of the line.
type message struct {
	id, method, params, result, err value
	inParams
}

// inParams are members of params, inUpdate of its update, inContent of the
// update's content: set if that is an object.
type inParams struct {
	session, update value // sessionId, update
	inUpdate
}

type inUpdate struct {
	kind, messageID, toolCallID value // sessionUpdate, messageId, toolCallId
	title, toolKind, status     value // title, kind, status
	content, entries            value // content, entries
	commands, modeID, options   value // availableCommands, currentModeId, configOptions
	used, size                  value // used, size
	inContent
}

type inContent struct {
	contentType, text value // type, text
}

// A message, its params, their update and its content are the objects whose
// members are looked at. Each can only stand at its own depth.
const (
	depthMessage = 1 + iota
	depthParams
	depthUpdate
	depthContent
)

// slot returns where the member of an object at that depth is kept, nil if
// nowhere, and whether its own members are looked at.
func (m *message) slot(depth int, key []byte) (v *value, nested bool) {
	switch depth {
	case depthMessage:
		switch string(key) {
		case "id":
			return &m.id, false
		case "method":
			return &m.method, false
		case "params":
			return &m.params, true
		case "result":
			return &m.result, false
		case "error":
			return &m.err, false
		}
	case depthParams:
		switch string(key) {
		case "sessionId":
			return &m.session, false
		case "update":
			return &m.update, true
		}
	case depthUpdate:
		if string(key) == "content" {
			return &m.content, true
		}
		return m.updateSlot(key), false
	case depthContent:
		switch string(key) {
		case "type":
			return &m.contentType, false
		case "text":
			return &m.text, false
		}
	}
	return nil, false
}

func (u *inUpdate) updateSlot(key []byte) *value {
	switch string(key) {
	case "sessionUpdate":
		return &u.kind
	case "messageId":
		return &u.messageID
	case "toolCallId":
		return &u.toolCallID
	case "title":
		return &u.title
	case "kind":
		return &u.toolKind
	case "status":
		return &u.status
	case "entries":
		return &u.entries
	case "availableCommands":
		return &u.commands
	case "currentModeId":
		return &u.modeID
	case "configOptions":
		return &u.options
	case "used":
		return &u.used
	case "size":
		return &u.size
	}
	return nil
}

// dropInside forgets what was found inside a nested member of an object at
// that depth.
func (m *message) dropInside(depth int) {
	switch depth {
	case depthMessage:
		m.inParams = inParams{}
	case depthParams:
		m.inUpdate = inUpdate{}
	case depthUpdate:
		m.inContent = inContent{}
	}
}

// ownID reads an id of ours: a number from 1, or, quoted, a string in its exact
// decimal form (SPEC 12).
func ownID(v value) (id int64, quoted, ok bool) {
	const longest = len(`"9223372036854775807"`)
	digits := []byte(v)
	if quoted = v.kind() == '"'; quoted {
		if len(v) > 6*longest { // even if every byte is a \u escape
			return 0, false, false
		}
		digits = appendUnquoted(nil, v)
	}
	if len(digits) == 0 || len(digits) > longest || digits[0] < '1' || digits[0] > '9' {
		return 0, false, false
	}
	id, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		return 0, false, false
	}
	return id, quoted, true
}

func encodeRequest(id int64, method string, params any) []byte {
	return encode(struct {
		Version string `json:"jsonrpc"`
		ID      int64  `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{"2.0", id, method, params})
}

func encodeNotification(method string, params any) []byte {
	return encode(struct {
		Version string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  any    `json:"params,omitempty"`
	}{"2.0", method, params})
}

// encodeResult answers a request of the runtime; its id goes back as it came.
func encodeResult(id value, result any) []byte {
	return encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{"2.0", json.RawMessage(id), result})
}

func encodeError(id value, code int, msg string) []byte {
	type rpcError struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	return encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   rpcError        `json:"error"`
	}{"2.0", json.RawMessage(id), rpcError{code, msg}})
}

// encode makes one line of a message of ours.
func encode(message any) []byte {
	var line bytes.Buffer
	e := json.NewEncoder(&line)
	e.SetEscapeHTML(false)
	if err := e.Encode(message); err != nil {
		panic("acp: a message of ours does not encode: " + err.Error())
	}
	return line.Bytes()
}
