module thalweg/bench/peers/elasticmq

go 1.26.0
