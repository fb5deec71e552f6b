package stats

import "testing"

func TestMemoryLimit(t *testing.T) {
	for limit, want := range map[string]struct {
		bytes int64
		err   string
	}{
		"0":     {},
		"32Mi":  {bytes: 32 << 20},
		"1Gi":   {bytes: 1 << 30},
		"31Mi":  {err: "memory-limit is 31Mi: give 32Mi or more, or 0 for none"},
		"-64Mi": {err: "memory-limit is -64Mi: give 32Mi or more, or 0 for none"},
	} {
		got, err := (&Config{MemoryLimit: limit}).MemoryBytes()
		if got != want.bytes || (err == nil) != (want.err == "") || err != nil && err.Error() != want.err {
			t.Errorf("%s: %d, %v, want %d, %q", limit, got, err, want.bytes, want.err)
		}
	}
}
