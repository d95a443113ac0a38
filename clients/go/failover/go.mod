module dlock.example/dlock/failover

go 1.26.0

replace dlock.example/dlock => ../

require (
	dlock.example/dlock v0.0.0
	github.com/redis/go-redis/v9 v9.23.0
	golang.org/x/sys v0.48.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
)
