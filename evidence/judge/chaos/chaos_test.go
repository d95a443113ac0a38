package chaos

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// some is a shortened history of `make chaos`.
const some = `
{"type":"info","process":"faults","f":"cell","what":"a cell","time":0,"one-owner":true}
{"type":"invoke","process":"c1","f":"acquire","key":"k","owner":"a","limit":1,"time":1000}
{"type":"ok","process":"c1","f":"acquire","key":"k","owner":"a","token":1000001500,"time":2000}
{"type":"invoke","process":"a k","f":"hold","key":"k","owner":"a","token":1000001500,"limit":1,"time":2000}
{"type":"invoke","process":"c2","f":"acquire","key":"k","owner":"b","limit":1,"time":3000}
{"type":"info","process":"faults","f":"a fault","what":"begins","time":4000}
{"type":"ok","process":"a k","f":"hold","key":"k","time":50000}
{"type":"ok","process":"c2","f":"acquire","key":"k","owner":"b","token":1000050500,"time":51000}
{"type":"invoke","process":"b k","f":"hold","key":"k","owner":"b","token":1000050500,"limit":1,"time":51000}
{"type":"ok","process":"b k","f":"hold","key":"k","time":90000}
`

func verdict(t *testing.T, text string) Verdict {
	t.Helper()
	var lines []line
	for _, one := range strings.Split(strings.TrimSpace(text), "\n") {
		var l line
		if err := json.Unmarshal([]byte(one), &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	cell, err := cellOf(lines)
	if err != nil {
		t.Fatal(err)
	}
	return Judge(cell, time.Minute)
}

func TestOneOwnerAfterTheOther(t *testing.T) {
	v := verdict(t, some)
	if v.Illegal != 0 || v.Unknown != 0 || v.Operations != 6 || v.IsWrong() {
		t.Error(v.String())
	}
	if v.Planted != 1 || v.Found != 1 {
		t.Error("the planted owner was not found:", v.String())
	}
}

func TestTwoOwnersAtOnce(t *testing.T) {
	v := verdict(t, strings.Replace(some, `"key":"k","time":50000`, `"key":"k","time":51001`, 1))
	if v.Illegal != 1 || !v.IsWrong() {
		t.Error(v.String())
	}
	v = verdict(t, strings.Replace(strings.Replace(some, `"key":"k","time":50000`, `"key":"k","time":51001`, 1),
		`"one-owner":true`, `"one-owner":false`, 1))
	if v.Illegal != 1 || v.IsWrong() {
		t.Error("this cell promises nothing:", v.String())
	}
}

func TestReadersAtOnce(t *testing.T) {
	readers := strings.ReplaceAll(some, `"limit":1`, `"limit":0`)
	v := verdict(t, strings.Replace(readers, `"key":"k","time":50000`, `"key":"k","time":51001`, 1))
	if v.Illegal != 0 {
		t.Error(v.String())
	}
}

func TestATokenThatFalls(t *testing.T) {
	fallen := strings.ReplaceAll(some, "1000050500", "1000001400")
	if v := verdict(t, fallen); v.Illegal != 1 {
		t.Error(v.String())
	}
	// Unless it may belong to a request without an answer.
	before := `{"type":"invoke","process":"c2","f":"acquire","key":"k","owner":"b","limit":1,"time":900}
{"type":"info","process":"c2","f":"acquire","key":"k","owner":"b","error":"lost","time":950}
`
	at := strings.Index(fallen, `{"type":"invoke"`)
	if v := verdict(t, fallen[:at]+before+fallen[at:]); v.Illegal != 0 {
		t.Error(v.String())
	}
	if v := verdict(t, some[:at]+before+some[at:]); v.Illegal != 0 {
		t.Error(v.String())
	}
}

func TestAProcessThatDoesTwoThingsAtOnce(t *testing.T) {
	if _, err := cellOf([]line{{F: "cell"}, {Type: "ok", Process: "c", F: "acquire"}}); err == nil {
		t.Error("an end without a beginning is an error")
	}
}
